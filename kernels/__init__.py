"""The shipped Triton kernels as plain callables, which import torch and triton only."""
