"""Models with the tensors of NVIDIA's backends, on the CPU. Each module is a model of Triton's
Python backend, or a part of one. They start quickly: NumPy, no torch.
"""
