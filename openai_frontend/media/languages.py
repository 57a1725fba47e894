"""The languages of OpenAI's Whisper models: their codes, and their English names.

https://github.com/openai/whisper/blob/main/whisper/tokenizer.py
"""

from collections.abc import Mapping

_NAMES = (
    "en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese, "
    "pt portuguese, tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, "
    "it italian, id indonesian, hi hindi, fi finnish, vi vietnamese, he hebrew, uk ukrainian, "
    "el greek, ms malay, cs czech, ro romanian, da danish, hu hungarian, ta tamil, no norwegian, "
    "th thai, ur urdu, hr croatian, bg bulgarian, lt lithuanian, la latin, mi maori, ml malayalam, "
    "cy welsh, sk slovak, te telugu, fa persian, lv latvian, bn bengali, sr serbian, "
    "az azerbaijani, sl slovenian, kn kannada, et estonian, mk macedonian, br breton, eu basque, "
    "is icelandic, hy armenian, ne nepali, mn mongolian, bs bosnian, kk kazakh, sq albanian, "
    "sw swahili, gl galician, mr marathi, pa punjabi, si sinhala, km khmer, sn shona, yo yoruba, "
    "so somali, af afrikaans, oc occitan, ka georgian, be belarusian, tg tajik, sd sindhi, "
    "gu gujarati, am amharic, yi yiddish, lo lao, uz uzbek, fo faroese, ht haitian creole, "
    "ps pashto, tk turkmen, nn nynorsk, mt maltese, sa sanskrit, lb luxembourgish, my myanmar, "
    "bo tibetan, tl tagalog, mg malagasy, as assamese, tt tatar, haw hawaiian, ln lingala, "
    "ha hausa, ba bashkir, jw javanese, su sundanese, yue cantonese"
)

# Code, as in the language tokens of the models -> name; large-v3 and later know the last one
NAMES: Mapping[str, str] = {
    code: name for code, _, name in (each.partition(" ") for each in _NAMES.split(", "))
}
_CODES = {name: code for code, name in NAMES.items()}


def code_of(language: str) -> str:
    """The code of a language, given by its code or its name."""
    language = language.strip().lower()
    return _CODES.get(language, language)


def name_of(code: str) -> str:
    """The English name; the code of a language that is not listed."""
    return NAMES.get(code, code)
