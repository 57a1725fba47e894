"""Speaks words with eSpeak NG, whose library and data are the tool environment `speech`.

Only training uses it: eSpeak NG is under the GPL, and the sound that it makes is not.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly  # type: ignore[import-untyped]  # it has none

from scripts.setup.clients import TOOLS
from scripts.setup.install import site_packages

SAMPLE_RATE = 16_000  # Hz, what Whisper takes

_SYNCHRONOUS, _RATE, _PITCH, _UTF8 = 2, 1, 3, 1  # constants of speak_lib.h
_SPOKEN_RATE = 22_050  # Hz
_UP, _DOWN = 320, 441  # from _SPOKEN_RATE to SAMPLE_RATE
_PEAK_SHARE = 0.02  # what is quieter before and after a word is cut off
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)

Samples = NDArray[np.float32]


class Speaker:
    """The library; one per process."""

    def __init__(self) -> None:
        """Raises RuntimeError if the library does not start."""
        package = site_packages(TOOLS / "speech") / "espeakng_loader"
        self._library = ctypes.CDLL(str(package / "libespeak-ng.so"))
        data = str(package / "espeak-ng-data").encode()
        if self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, 0) != _SPOKEN_RATE:
            raise RuntimeError(f"eSpeak NG does not start with the data in {package}")
        self._heard: list[NDArray[np.int16]] = []
        self._callback = _CALLBACK(self._hear)  # kept: the library has only its address
        self._library.espeak_SetSynthCallback(self._callback)

    def _hear(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, _: object) -> int:
        if samples and count:
            self._heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def say(self, text: str, voice: str, rate: int, pitch: int) -> Samples:
        """Return the text as spoken, without silence around it.

        `rate` in words per minute, `pitch` from 0 to 99. Raises RuntimeError for an unknown voice.
        """
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise RuntimeError(f"eSpeak NG has no voice {voice}")
        self._library.espeak_SetParameter(_RATE, rate, 0)
        self._library.espeak_SetParameter(_PITCH, pitch, 0)
        self._heard.clear()
        data = text.encode()
        self._library.espeak_Synth(data, len(data) + 1, 0, 0, 0, _UTF8, None, None)
        spoken = resample_poly(np.concatenate(self._heard).astype(np.float32), _UP, _DOWN)
        loud = np.flatnonzero(np.abs(spoken) > _PEAK_SHARE * np.abs(spoken).max())
        kept = spoken[loud[0] : loud[-1] + 1]
        return np.asarray(kept / np.abs(kept).max(), np.float32)
