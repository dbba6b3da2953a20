"""The installation's ConfigMap: settings that all components share. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.runtime import options
from gpushare.wire import fields

T = TypeVar("T")


def setting(config: Mapping[str, Any], field: str, default: T, parse: Callable[[str], T]) -> T:
    """One setting.

    Args:
        config: the ConfigMap; an empty object stands for one that is not there.
        field: its name in the components' Settings.
        default: if it is not set.
        parse: reads it.

    Raises:
        SettingsError: it cannot be understood.
        WireError: this is no ConfigMap.
    """
    data = fields.mapping(config, "data", names.CONFIG)
    _, variable = options.flag_names(field)
    text = fields.text(data, variable, f"{names.CONFIG}.data")
    if variable not in data:
        return default
    try:
        return parse(text)
    except (ValueError, SettingsError) as error:
        raise SettingsError(f"{variable} is {text!r}: {error}") from error
