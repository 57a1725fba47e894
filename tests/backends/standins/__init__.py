"""Models with the tensors of NVIDIA's backends, on the CPU: each module is a model of Triton's
Python backend, or a part of one. They are quick to start: NumPy, no torch.
"""
