"""The images and audio of a request, each kind read by its own reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.media.modalities import AudioFile, AudioSupport, ImageInput, ImageSupport
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.admission.model import Describes
from openai_frontend.serving.request.audio import AudioFileReader, AudioLimits
from openai_frontend.serving.request.images import ImageLimits, ImageReader
from openai_frontend.serving.request.media_parts import KINDS, MediaPart

MAX_COPIED_BYTES = 64 * 1024 * 1024  # base64 of all choices of a request


@dataclass(frozen=True, slots=True)
class Media:
    """The media of a request, in the order of its parts."""

    images: tuple[ImageInput, ...] = ()
    audio_files: tuple[AudioFile, ...] = ()

    @property
    def counts(self) -> Mapping[str, int]:
        """Items by kind, as chat templates know it."""
        return {"image": len(self.images), "audio": len(self.audio_files)}

    def beside(self, prompt: Prompt) -> Prompt:
        """The prompt with this media."""
        return replace(prompt, images=self.images, audio_files=self.audio_files)

    def check_choices(self, n: int) -> None:
        """Each choice is a request of its own, with copies of the media."""
        items: list[ImageInput | AudioFile] = [*self.images, *self.audio_files]
        size = n * sum(len(each.base64) for each in items)
        if n > 1 and size > MAX_COPIED_BYTES:
            message = (
                f"Invalid 'n': {n} choices with their images and audio are {size} bytes; the "
                f"limit is {MAX_COPIED_BYTES} bytes per request. Request fewer choices."
            )
            raise InvalidRequest(message, param="n", code="integer_above_max_value")


NO_MEDIA = Media()


def tokens_with_media(prompt: Prompt, model: Describes) -> int:
    """The tokens of a prompt with its media, as the engine counts them. A placeholder counts as it
    is if the model does not say how many tokens replace it, or if that depends on the item.
    """
    return len(prompt.token_ids) + media_tokens(prompt, model)


def media_tokens(sent: Prompt | GenerationRequest, model: Describes) -> int:
    """The tokens that media adds to its placeholders, as far as they are known."""
    count = 0
    if sent.images:
        count += len(sent.images) * _tokens_of_media(model.facts.images)
    if sent.audio_files:
        count += len(sent.audio_files) * _tokens_of_media(model.facts.audio)
    return count


def _tokens_of_media(support: ImageSupport | AudioSupport | None) -> int:
    """Tokens that an item adds to its placeholder."""
    if support is None or support.tokens is None or not support.target:
        return 0
    return len(support.tokens) - len(support.target)


class MediaReader:
    """Reads the media of messages. One per process."""

    def __init__(
        self, images: ImageReader | None = None, audio: AudioFileReader | None = None
    ) -> None:
        """None: with the default limits."""
        self._images = images or ImageReader(ImageLimits())
        self._audio = audio or AudioFileReader(AudioLimits())

    async def read(self, parts: Sequence[MediaPart], model: Describes) -> Media:
        """Raises InvalidRequest for the first item of a kind that is invalid or beyond a limit."""
        by_kind: dict[str, list[MediaPart]] = {"image": [], "audio": []}
        for each in parts:
            by_kind[KINDS[each.part["type"]]].append(each)
        images, audio = by_kind["image"], by_kind["audio"]
        return Media(
            await self._images.read(images, model) if images else (),
            await self._audio.read(audio, model) if audio else (),
        )
