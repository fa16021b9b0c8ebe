"""What a user's repository says: its configuration, the target of a run, and of which files a kernel is made."""
