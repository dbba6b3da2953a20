"""The whole way on a real cluster: nothing in this directory is faked but the GPUs."""
