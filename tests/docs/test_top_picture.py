"""The picture of `gpushare top` is what the command prints."""

from release.pages import top_picture


def test_the_picture_is_what_is_printed() -> None:
    assert top_picture.PICTURE.read_text(encoding="utf-8") == top_picture.made(), "run `make docs`"
