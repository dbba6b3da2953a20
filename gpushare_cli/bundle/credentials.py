"""Texts, such as logs and messages in objects, lose what looks like a credential. Pure."""

import re
from typing import Any, Final

HIDDEN: Final = "(hidden)"
_QUOTE: Final = r"""\\{0,7}["']"""
"""With backslashes where the text is JSON within JSON."""
_WORDS: Final = rf"""(?:pass(?:word|wd|phrase)|pwd|secret|token|(?:api|access|private)[_-]?key|key[_-]?data
        |credentials?|signature|[?&]sig|\bauth(?={_QUOTE}))"""
_LABEL: Final = rf"""{_WORDS}(?:{_QUOTE})?\s*[=:]\s*"""
"""What is written before a value."""
_PLAIN: Final = r"""(?P<plain>(?:[^\s"',;}\\]|\\(?!\\{0,6}["']))+)"""
_SECRETS: Final = (
    re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    re.compile(r"LS0tLS1CRUdJTi[\w+/=]+"),  # the same in Base64, as kubeconfig files have it
    # JSON Web Tokens, as service accounts have. From the start of a run on, so that a long one is looked at once.
    re.compile(r"(?<![\w-])(?=(?:[\w-]*-)?eyJ[\w-]{8})[\w-]++\.[\w-]+(?:\.[\w-]*)?"),
    # Of GitHub, GitLab, Docker, Hugging Face, Slack, AWS, Google; of NVIDIA, whose start may be that of a pod's name.
    re.compile(r"\b(?:gh[a-z]_|github_pat_|glpat-|dckr_pat_|hf_|xox[a-z]-|A[KS]IA|AIza)[\w-]{16,}"),
    re.compile(r"\bnvapi-[\w-]{40,}"),
    re.compile(rf"(?ix)authorization(?:{_QUOTE})?\s*[=:]\s*(?:{_QUOTE})?(?:[\w-]+[ ]+)?{_PLAIN}"),
    re.compile(rf"(?ix)\bbearer[ ]{_PLAIN}"),
    re.compile(r"(?i)\bbasic (?P<value>[\w+/=-]{8,})"),
    re.compile(r"(?i)\bcookie: (?P<value>[^\n\"']+)"),
    re.compile(r"://(?P<value>[^/\s@\"']+)@"),
    re.compile(rf"""(?ix)--[\w-]{{0,30}}{_WORDS}(?:{_QUOTE},?)?\s+(?:-\s+)?(?:{_QUOTE})?(?!-){_PLAIN}"""),
    re.compile(rf"""(?ix){_LABEL}(?:(?P<quote>{_QUOTE})(?P<value>[^\n]+?)(?P=quote)|(?:{_QUOTE})?+{_PLAIN})"""),
)
"""The last group of a match is hidden, or all of it where there is none."""

_NAME: Final = re.compile(rf"(?ix)[\w./-]{{0,200}}{_WORDS}")
"""Of a field, or a flag, whose value is hidden."""


def text(raw: str) -> str:
    """The same without what looks like a credential."""
    for pattern in _SECRETS:
        raw = pattern.sub(_hidden, raw)
    return raw


def value(raw: Any) -> Any:
    """The same object, whose texts have lost what looks like a credential.

    Before it is written as YAML or JSON: there, a text has marks of the notation in it.
    """
    match raw:
        case str():
            return text(raw)
        case list():
            before = [None, *raw]
            return [_named(name, each) for name, each in zip(before, raw, strict=False)]
        case dict():
            return {key: _named(key, each) for key, each in raw.items()}
        case _:
            return raw


def _named(name: object, each: object) -> Any:
    """A field's value, or what comes after a flag."""
    is_flag_or_field = isinstance(name, str) and isinstance(each, str)
    return HIDDEN if is_flag_or_field and _NAME.fullmatch(str(name)) else value(each)


def _hidden(found: re.Match[str]) -> str:
    start, end = found.span(found.lastgroup or 0)
    return found.string[found.start() : start] + HIDDEN + found.string[end : found.end()]
