"""NVIDIA's management library (NVML), through its Python binding `pynvml`, which only `driver` imports."""
