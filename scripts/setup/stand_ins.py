"""Empty wheels, metadata only, for packages that a CPU set-up requires but must not contain."""

import base64
import hashlib
import zipfile
from pathlib import Path

# The dependents accept any local version, and a local version is never served by an index:
# a pin of "+standin" can only be met from our own folder.
STAND_INS = {
    # The index's wheels of these three are CUDA builds, which do not import beside a CPU torch.
    "torchvision": "0.28.0+standin",
    "torchaudio": "2.11.0+standin",
    "torchcodec": "0.14.0+standin",
    # A GPU compiler of 1 GB that xgrammar names; none of its CPU paths imports it.
    "triton": "3.7.1+standin",
    # vLLM asks for its own version under the name "vllm", and takes the platform from the "cpu".
    "vllm": "0.32.0+cpu",
}

EPOCH = (1980, 1, 1, 0, 0, 0)


def write_stand_ins(folder: Path) -> None:
    """Write one wheel per stand-in; the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, version in STAND_INS.items():
        write_wheel(folder, name, version)


def constraints() -> list[str]:
    """The pins that make pip choose the stand-ins."""
    return ["{}=={}".format(*item) for item in STAND_INS.items()]


def write_wheel(folder: Path, name: str, version: str) -> Path:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": metadata(name, version),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    rows = [f"{path},{digest(text)},{len(text.encode())}\n" for path, text in files.items()]
    files[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, EPOCH), text)
    return wheel


def metadata(name: str, version: str) -> str:
    summary = f"Stands in for {name}, which this CPU environment does not use."
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n"


def digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
