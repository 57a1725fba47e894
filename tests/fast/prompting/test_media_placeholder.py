"""What stands for an image comes from the template alone, and is counted in every prompt."""

from pathlib import Path
from typing import Any

import pytest

import chat_templates
from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting import media_placeholder, tokenizer
from openai_frontend.prompting.chat_template import ChatTemplate
from openai_frontend.prompting.prompt import Prompt, PromptBuilder, TokenizeOptions
from tests.fast.prompting import tiny_tokenizer

IMAGE = {"type": "image"}
SPECIAL = "<|vision|>", "<image>"


def loop(parts: str) -> str:
    """A template that has `parts` for messages whose content is a list."""
    return (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        f"{parts}{{% endif %}}{{% endfor %}}"
    )


def parts(image: str) -> str:
    """The loop over the parts of a message."""
    return (
        "{% for p in m.content %}{% if p.type == 'image' %}"
        f"{image}{{% else %}}{{{{ p.text }}}}{{% endif %}}{{% endfor %}}"
    )


QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
# In the manner of models' own templates -> what one image adds
TEMPLATES = {
    "qwen": (loop(parts(QWEN)), QWEN),
    "idefics": (
        "{% for m in messages %}{{ m.role }}{% if m.content[0].type == 'image' %}:{% else %}: "
        "{% endif %}" + parts("<image>") + "\n{% endfor %}",
        "<image>",
    ),
    "llava": (
        "{% for m in messages %}{{ m.role }}: "
        "{% for p in m.content | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}"
        "{% endfor %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}"
        "{{ p.text }} {% endfor %}{% endfor %}",
        "<image>\n",
    ),
    "numbered": (
        "{% set n = namespace(n=0) %}"
        + loop(parts("{% set n.n = n.n + 1 %}<|image_{{ n.n }}|>\n")),
        "<|image_2|>\n",
    ),
    "only one": (
        loop("{% if m.content|length > 2 %}{{ raise_exception('') }}{% endif %}" + parts("[IMG]")),
        "[IMG]",
    ),
    "prints parts": ("{% for m in messages %}{{ m.content }}{% endfor %}", ""),
    "prints JSON": ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", ""),
    "refuses images": (loop("{{ raise_exception('text only') }}"), ""),
    "drops images": (loop(parts("")), ""),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_placeholder_is_what_the_template_writes_for_one_more_image(name):
    source, expected = TEMPLATES[name]

    assert ChatTemplate(source, {}).media("image") == expected


@pytest.mark.parametrize("name", chat_templates.names())
def test_built_in_templates_take_no_images(name):
    assert ChatTemplate(chat_templates.read(name), {}).media("image") == ""


def builder(
    folder: Path, *, template: str = tiny_tokenizer.VISION, default: str | None = None,
    as_text: bool = False, allow_special_tokens: bool = False,
) -> PromptBuilder:  # fmt: skip
    written = tiny_tokenizer.write(folder, chat_template=template, special_tokens=SPECIAL)
    prompts = PromptBuilder(tokenizer.load(written), allow_special_tokens=allow_special_tokens)
    prompts.take_media("image", default, as_text=as_text)
    return prompts


def user(*parts: Any) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": content}]


def chat(prompts: PromptBuilder, messages: list[dict[str, Any]], images: int) -> Prompt:
    options = TokenizeOptions(param="messages", add_special_tokens=False, media={"image": images})
    return prompts.chat(messages, options)


def test_images_are_interleaved_with_text_as_sent(tmp_path):
    prompt = chat(builder(tmp_path), user("a", IMAGE, "b", IMAGE), 2)

    assert "a<|vision|><image>b<|vision|><image>" in (prompt.text or "")


@pytest.mark.parametrize("allowed", [False, True])
def test_placeholders_in_text_stay_text(tmp_path, allowed):
    """Even if other special tokens of clients' texts are allowed."""
    prompts = builder(tmp_path, allow_special_tokens=allowed)
    [image] = tokenizer.load(tmp_path).encode("<image>", add_special_tokens=False).ids

    prompt = chat(prompts, user("<image> and <|vision|>", IMAGE), 1)

    assert list(prompt.token_ids).count(image) == 1
    assert list(chat(prompts, user("<image>"), 0).token_ids).count(image) == 0


def test_text_of_a_message_without_images_is_rendered_as_before(tmp_path):
    """Templates often differ for a text and a list with one text."""
    messages = [{"role": "user", "content": "a"}, *user("b", "c"), *user("d", IMAGE)]

    text = chat(builder(tmp_path), messages, 1).text or ""

    assert "a<|im_end|>" in text
    assert "b\nc<|im_end|>" in text


def test_engines_placeholder_is_written_where_the_template_writes_none(tmp_path):
    """At the image's place, not in front of all texts."""
    prompts = builder(tmp_path, template=tiny_tokenizer.CHATML, default="<image>")

    prompt = chat(prompts, user("a", IMAGE, "b <image>"), 1)

    assert "a\n<image>\nb <image>" in (prompt.text or "")


MISMATCHES = [
    ("{% for m in messages %}{{ m.content[-1].text }}{% endfor %}", "0 image placeholders"),
    ("{% for m in messages %}<image>" + parts("<image>") + "{% endfor %}", "3 image placeholders"),
]


@pytest.mark.parametrize(("rendered", "words"), MISMATCHES)
def test_prompt_needs_one_placeholder_for_each_image(tmp_path, rendered, words):
    """A template may drop the images of some roles, or write others by itself."""
    template = "{% if messages | length == 1 %}" + loop(parts("<image>"))
    prompts = builder(tmp_path, template=template + "{% else %}" + rendered + "{% endif %}")

    with pytest.raises(InvalidRequest, match=words) as refused:
        chat(prompts, [*user(IMAGE, "a"), *user("b")], 1)
    assert refused.value.param == "messages"


def test_truncation_must_not_cut_images(tmp_path):
    prompts = builder(tmp_path)
    cut = tokenizer.Truncation(4, "left")
    options = TokenizeOptions(
        param="messages", add_special_tokens=False, media={"image": 1}, truncation=cut
    )

    with pytest.raises(InvalidRequest, match="truncated"):
        prompts.chat(user(IMAGE, "a long text behind it"), options)


@pytest.mark.parametrize("as_text", [False, True])
def test_prompt_of_a_client_must_not_have_placeholders(tmp_path, as_text):
    """A completion's text is tokenized with special tokens. An engine may die of a placeholder
    without an image (CVE-2026-44222).
    """
    prompts = builder(tmp_path, as_text=as_text)
    ids = tokenizer.load(tmp_path).fast.encode("<|vision|><image>", add_special_tokens=False).ids

    with pytest.raises(InvalidRequest, match="Do not write placeholders"):
        prompts.completion("a <|vision|><image> b")
    with pytest.raises(InvalidRequest, match="Do not write placeholders") as refused:
        prompts.check_placeholders(ids, {}, "prompt")
    assert refused.value.param == "prompt"
    prompts.completion("a b")
    prompts.check_placeholders([1, 2], {}, "prompt")


def test_placeholders_that_a_backend_would_find_in_text_are_counted(tmp_path):
    """It tokenizes the text itself, so the gateway cannot keep them apart."""
    prompts = builder(tmp_path, as_text=True)

    assert "<image>" in (chat(prompts, user(IMAGE, "a"), 1).text or "")
    with pytest.raises(InvalidRequest, match="Do not write placeholders"):
        chat(prompts, user(IMAGE, "a <|vision|><image>"), 1)


@pytest.mark.parametrize(
    ("template", "default"), [(tiny_tokenizer.CHATML, None), (None, "<image>")]
)
def test_model_without_a_placeholder_takes_no_images(tmp_path, template, default):
    """Or without a chat template."""
    written = tiny_tokenizer.write(tmp_path, chat_template=template, special_tokens=SPECIAL)

    assert (
        PromptBuilder(tokenizer.load(written)).take_media("image", default, as_text=False) is None
    )


def test_numbered_placeholders_are_counted_in_text(tmp_path):
    """Each has a token of its own."""
    written = tiny_tokenizer.write(tmp_path, special_tokens=["<|image_1|>", "<|image_2|>"])
    builder = PromptBuilder(tokenizer.load(written))
    placeholder = media_placeholder.of_text("image", "<|image_2|>\n", added={}, encode=builder.ids)

    placeholder.check("<|image_1|>\na<|image_2|>\n", [7, 8], 2, "messages")
    with pytest.raises(InvalidRequest):
        placeholder.check("<|image_1|>\n", [7], 2, "messages")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "x"}, *user(IMAGE, "a")],
        [*user("a"), {"role": "assistant", "content": "b"}, *user(IMAGE, "c")],
        [{"role": "assistant", "content": [IMAGE]}],
    ],
)
def test_model_with_its_own_template_takes_one_question(messages):
    with pytest.raises(InvalidRequest, match="a single message"):
        media_placeholder.only_question(messages)

    assert media_placeholder.only_question(user("a", IMAGE, "b")) == "a\nb"
