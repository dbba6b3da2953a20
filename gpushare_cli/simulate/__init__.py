"""What would go where, without a cluster: files in, a plan out. Pure but for reading the files."""
