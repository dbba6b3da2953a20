"""What the doctor expects of the components is what they do."""

from pathlib import Path

import controller.main
from gpushare.resource_config import ResourceConfig
from gpushare_cli.doctor import checks_controller, checks_webhook, objects, trial
from webhook import mutation
from webhook.metrics import Metrics
from webhook.mutation import Mutated
from webhook.rules import Rules


def test_the_webhook_completes_the_trial_pod_and_that_is_noticed() -> None:
    decision = mutation.mutate(trial.pod(), Rules(resource_config=ResourceConfig()))
    assert isinstance(decision, Mutated)
    assert trial.missing(decision.pod) == []
    assert decision.warnings == ()


def test_the_webhook_tells_the_time_left_under_the_expected_name() -> None:
    page = Metrics(lambda: 61.25, lambda: None).exposition().decode()
    assert objects.metric(page, checks_webhook.LEFT) == 61.25


def test_the_controller_tells_the_differences_under_the_expected_name() -> None:
    source = Path(controller.main.__file__).read_text(encoding="utf-8")
    assert f'"{checks_controller.DIFFERENCES}"' in source
