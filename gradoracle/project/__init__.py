"""The user's repository: its configuration, the options and target of a run, and the files of a kernel."""
