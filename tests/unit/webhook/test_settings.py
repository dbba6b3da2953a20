import pytest

from gpushare.errors import SettingsError
from gpushare.runtime import options
from gpushare.units import MemoryUnit, ResourceConfig
from webhook.runtimeclass import Mode
from webhook.settings import Settings


def load(**variables: str) -> Settings:
    return options.load(Settings, [], prog="gpushare-webhook", environ=variables)


def test_defaults_serve_an_ordinary_cluster() -> None:
    settings = load()
    assert (settings.address, settings.port, settings.threads) == ("0.0.0.0", 8443, 32)
    assert (settings.memory_unit, settings.scheduler_name) == (MemoryUnit(1024), "gpushare-scheduler")
    assert (settings.runtime_class, settings.runtime_class_mode) == ("nvidia", Mode.WHERE_NEEDED)
    assert settings.controller == "system:serviceaccount:gpushare-system:gpushare-controller"
    assert (settings.cert_dir, settings.extender_schedulers) == ("/run/gpushare/certs", ())


def test_unit_whole_gpus_and_the_controllers_namespace_are_read() -> None:
    assert load(GPUSHARE_WHOLE_GPUS="false").resource_config == load().resource_config == ResourceConfig()
    settings = load(GPUSHARE_MEMORY_UNIT="256MiB", GPUSHARE_WHOLE_GPUS="true")
    assert settings.resource_config == ResourceConfig(unit=MemoryUnit(256), whole_gpus=True)
    assert load(GPUSHARE_NAMESPACE="ns").controller == "system:serviceaccount:ns:gpushare-controller"
    assert load(GPUSHARE_CONTROLLER_USER="alice").controller == "alice"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("threads", "8", 8),
        ("threads", "512", 512),
        ("runtime_class_mode", "never", Mode.NEVER),
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
        ("PORT", "99999", "write a port from 0 to 65535"),
        ("THREADS", "0", "write a number of threads from 1 to 512"),
        ("THREADS", "many", "write a number of threads from 1 to 512"),
        ("THREADS", "513", "write a number of threads from 1 to 512"),
        ("MEMORY_UNIT", "GB", "memory unit 'GB': write GiB, MiB or a multiple such as 256MiB"),
        ("RUNTIME_CLASS_MODE", "maybe", "write one of where-needed, if-exists, always, never"),
        *(
            (
                "FOREIGN_RESOURCES",
                value,
                f"{value!r} is no name of a resource; write names such as nvidia.com/gpu, or beginnings such as"
                " nvidia.com/mig-*",
            )
            for value in ("nvidia.com", "nvidia.com/", "nvidia.com/*-x")
        ),
        ("GRACEFUL_TIMEOUT_S", "0", "write a number above 0"),
        ("WHOLE_GPUS", "maybe", "write true or false"),
        ("LOG_LEVEL", "loud", "write one of debug, info, warning, error"),
    ],
)
def test_a_bad_value_names_the_variable_and_the_fix(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(**{f"GPUSHARE_{name}": value})
    assert str(caught.value) == f"GPUSHARE_{name}={value!r}: {message}"
