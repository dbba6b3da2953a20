"""The device plugin: tells the kubelet about shares of GPUs and lets no container start on a GPU it was not granted."""
