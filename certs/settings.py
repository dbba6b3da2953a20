"""Settings of the certificates. The webhook's own settings may inherit them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from certs.rotation import Plan
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.runtime import options
from gpushare.runtime.options import choice, option, positive

SELF: Final = "self"
FILES: Final = "files"
_SECONDS: Final = options.seconds("0 or more")


@dataclass(frozen=True, kw_only=True)
class CertSettings:
    """Where the webhook's certificates come from and when they change."""

    cert_source: str = option(
        SELF,
        "self: make and rotate its own CA; files: use the files in cert-dir, which cert-manager, for instance, renews",
        parse=choice(SELF, FILES),
    )
    cert_dir: str = option("/run/gpushare/certs", "directory of tls.crt, tls.key and ca.crt; best in memory")
    namespace: str = option(names.NAMESPACE, "namespace of the webhook's Service and Secret")
    cert_extra_names: tuple[str, ...] = option(
        (),
        "further DNS names or IP addresses of the webhook, separated by commas, if it is not called by its Service",
        parse=options.names,
    )
    cert_check_s: float = option(
        30.0,
        "seconds between two checks of the Secret and the webhook configurations; 2 during a rotation",
        parse=positive,
    )
    cert_propagation_s: float = option(
        60.0, "seconds until every API server has seen a change of the webhook configurations", parse=_SECONDS
    )
    cert_retire_s: float = option(
        600.0, "seconds that replicas have to take up a new leaf before the old CA leaves the bundle", parse=_SECONDS
    )
    cert_leaf_days: float = option(90.0, "life of a leaf in days; it is renewed after two thirds", parse=positive)
    cert_ca_days: float = option(730.0, "life of a CA in days; it is replaced after two thirds", parse=positive)

    def __post_init__(self) -> None:
        if self.cert_retire_s < 2 * self.cert_check_s:
            raise SettingsError(
                f"cert_retire_s={self.cert_retire_s:g}: replicas look every cert_check_s={self.cert_check_s:g} "
                f"seconds; write at least {2 * self.cert_check_s:g}"
            )
        if self.cert_ca_days < 2 * self.cert_leaf_days:
            raise SettingsError(
                f"cert_ca_days={self.cert_ca_days:g}: a CA must outlive its leaves by far; "
                f"write at least {2 * self.cert_leaf_days:g}"
            )

    @property
    def plan(self) -> Plan:
        service = f"{names.WEBHOOK_SERVICE}.{self.namespace}.svc"
        propagation = timedelta(seconds=self.cert_propagation_s)
        return Plan(
            names=frozenset({service, f"{service}.cluster.local", *self.cert_extra_names}),
            leaf_life=timedelta(days=self.cert_leaf_days),
            ca_life=timedelta(days=self.cert_ca_days),
            propagation=propagation,
            retire=timedelta(seconds=self.cert_retire_s) + propagation,
        )
