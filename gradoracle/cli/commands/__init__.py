"""The commands of ``gradoracle``, one module for those that belong together."""
