"""Commands: what each word after ``gradoracle`` takes, one module for those that belong together."""
