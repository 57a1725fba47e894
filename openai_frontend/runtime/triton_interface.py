"""Properties of Triton, besides its C API, on which the gateway relies: file layouts and texts of
messages.

None of it is a documented interface. tests/core/triton/test_interface.py provokes each with the
core that is installed, so that a release which changes one is found there.
"""

import re
from pathlib import Path

# NVIDIA's container images
IMAGE_SERVER = Path("/opt/tritonserver")
IMAGE_LIBRARY = IMAGE_SERVER / "lib" / "libtritonserver.so"

# The tested wheel, and its folders of site-packages
WHEEL = "nvidia-pytriton==0.7.0"
WHEEL_FOLDER = "nvidia_pytriton.libs"  # the library, with a hash in its name, and its dependencies
WHEEL_SERVER = Path("pytriton", "tritonserver")  # like IMAGE_SERVER, and the stubs
LIBRARY_PATTERN = "libtritonserver*.so"

# Folders of IMAGE_SERVER, WHEEL_SERVER and the output of `make core`
BACKENDS = "backends"
CACHES = "caches"
REPO_AGENTS = "repoagents"
STUBS = "python_backend_stubs"  # of the wheel and of `make core`: a folder per Python version

PYTHON_BACKEND = "python"  # a folder of BACKENDS with these files
PYTHON_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
STUB = "triton_python_backend_stub"  # the program that the backend starts from its folder
STUB_INSTANCE_AT = -2  # position of the model instance's name in the stub's arguments

# The core appends a number to the name of the model's instance group, even if there is only one
STUB_INSTANCE = re.compile(r"(?P<group>.*)_\d+", re.DOTALL)

# The Python backend's whole error for a stub that is dead or does not respond within 1 s.
# native/stubs.cc compares these texts. A model can send the same ones, so they never suffice.
UNHEALTHY_STUB = "Stub process '{instance}' is not healthy."
FULL_STUB = "Stub process is not healthy."  # and does not take the request
LOCKED_STUB = "Failed to obtain the health mutex."  # and holds a lock
# The core puts it before the error of a step
IN_ENSEMBLE = "in ensemble '{ensemble}', "

# Errors of the core's own queue end with these; their code is UNAVAILABLE, and the request's id may
# come first
QUEUE_FULL = "Exceeds maximum queue size"
QUEUE_TIMEOUT = "Request timeout expired"

# A model whose backend is not installed, or whose backend is a Python program and has no Python
# backend to run on
MISSING_BACKEND = re.compile(
    r"unable to find backend library (?:for backend '|'libtriton_)([^']+?)(?:\.so)?'"
)

# The whole reason that a load gives for a config which is not a ModelConfig; the log has more
UNREADABLE_CONFIG = "failed to poll from model repository"

# TensorRT-LLM's PeftCacheManager::addRequestPeft; backends put their own text before it, and Python
# models a traceback behind it
LORA_EVICTED = re.compile(
    r"(?:^|[:,] )LoRA task (?P<id>\d+) not found in cache\. "
    r"Please send LoRA weights with request(?:\s*\Z|\n\nAt:\n)"
)

# `W1121 23:10:11.123456 42 file.cc:12] "text"`, or the time in ISO 8601 and then the letter
LOG_LINE = re.compile(
    r'(?:(?P<a>[IWEFV])\d{4} |\S+ (?P<b>[IWEFV]) )[^\]]*\] "?(?P<text>.*?)"?', re.DOTALL
)
# A logged error: the model's folder cannot be read, and the model index does not contain it
UNREADABLE_MODEL = re.compile(r"Poll failed for model directory '(.*?)': (.*)")

# Logged as information during the start: a model that loads, an instance of it for which the Python
# backend starts a stub, and the end of the load
MODEL_LOADS = re.compile(r"loading: (.*):\d+")
STUB_STARTS = re.compile(
    r".*python_be\.cc.*TRITONBACKEND_ModelInstanceInitialize: (.*)_\d+ \(.*", re.DOTALL
)
MODEL_LOAD_ENDED = re.compile(r"(?:successfully loaded|failed to load) '(.*?)'.*", re.DOTALL)

# Logged without a GPU although nothing is wrong, or a repetition of the previous line
HARMLESS_WITHOUT_GPU = (
    "CudaDriverHelper",
    "pinned memory pool",
    "CUDA memory pool",
    "unable to create stream for ensemble",
    "failed to load all models",
)
