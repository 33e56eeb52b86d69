"""The loader: from files to tensors on a device. torch is imported below here only."""
