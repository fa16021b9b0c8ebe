"""The commands of ``gradoracle``, one module each."""
