"""What a user saw before and sees now: the same commands on two commits of gradoracle."""
