"""Where kernels run: on a sample, in a process apart, on a cluster; and what is noted while they do."""
