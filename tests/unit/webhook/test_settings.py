import pytest

from gpushare.errors import SettingsError
from gpushare.runtime import options
from gpushare.units import MemoryUnit, ResourceConfig
from webhook.settings import Settings


def load(**variables: str) -> Settings:
    return options.load(Settings, [], prog="gpushare-webhook", environ=variables)


def test_unit_whole_gpus_and_the_controllers_namespace_are_read() -> None:
    assert load(GPUSHARE_WHOLE_GPUS="false").resource_config == load().resource_config == ResourceConfig()
    settings = load(GPUSHARE_MEMORY_UNIT="256MiB", GPUSHARE_WHOLE_GPUS="true")
    assert settings.resource_config == ResourceConfig(unit=MemoryUnit(256), whole_gpus=True)
    assert load(GPUSHARE_NAMESPACE="ns").controller == "system:serviceaccount:ns:gpushare-controller"
    assert load(GPUSHARE_CONTROLLER_USER="alice").controller == "alice"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("threads", "512", 512),
        ("foreign_resources", "a.b/x, c.d/y-* ,", ("a.b/x", "c.d/y-*")),
        ("foreign_resources", "", ()),
        ("scheduler_name", "", ""),
        ("extender_schedulers", "a, b", ("a", "b")),
    ],
)
def test_lists_and_words_are_read(name: str, text: str, value: object) -> None:
    assert getattr(load(**{f"GPUSHARE_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(("THREADS", value, "write a number of threads from 1 to 512") for value in ("0", "many", "513")),
        *(
            (
                "FOREIGN_RESOURCES",
                value,
                f"{value!r} is no name of a resource; write names such as nvidia.com/gpu, or beginnings such as"
                " nvidia.com/mig-*",
            )
            for value in ("nvidia.com", "nvidia.com/", "nvidia.com/*-x")
        ),
    ],
)
def test_a_bad_value_names_the_variable_and_the_fix(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(**{f"GPUSHARE_{name}": value})
    assert str(caught.value) == f"GPUSHARE_{name}={value!r}: {message}"
