"""The pods that users wrote in their guides, admitted as they are."""

from typing import Any

import yaml

from testing.reviews import review, visible
from tests.unit.webhook.conftest import Webhook

BINPACK_TEMPLATE = """
metadata:
  labels:
    app: binpack-1
spec:
  containers:
  - name: binpack-1
    image: cheyang/gpu-player:v2
    resources:
      limits:
        # GiB
        aliyun.com/gpu-mem: 3
"""

SHARE_POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  restartPolicy: OnFailure
  containers:
    - name: {name}
      image: "docker.io/cheyang/gpu-player:v2"
      env:
        - name: NVIDIA_VISIBLE_DEVICES
          value: "all"
      resources:
        limits:
         aliyun.com/gpu-mem: {amount}
"""


def admitted(webhook: Webhook, manifest: str) -> Any:
    pod = yaml.safe_load(manifest)
    pod["metadata"].setdefault("generateName", "x-")
    return webhook.admit("/mutate", review(pod, name=""))


def test_the_template_of_the_binpack_stateful_set(webhook: Webhook) -> None:
    pod = admitted(webhook, BINPACK_TEMPLATE)
    container = pod["spec"]["containers"][0]
    assert container["env"][0] == visible("binpack-1")
    assert container["resources"] == {"limits": {"aliyun.com/gpu-mem": 3}, "requests": {"aliyun.com/gpu-mem": 3}}
    assert pod["metadata"]["labels"] == {"app": "binpack-1", "gpushare.dev/managed": "true"}
    assert pod["spec"]["schedulerName"] == "gpushare-scheduler"


def test_pods_that_ask_for_all_gpus_get_their_own(webhook: Webhook) -> None:
    for name, amount in (("gpu-share-pod1", 3), ("gpu-share-pod2", 5)):
        container = admitted(webhook, SHARE_POD.format(name=name, amount=amount))["spec"]["containers"][0]
        named = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert [entry for entry in container["env"] if entry["name"] == "NVIDIA_VISIBLE_DEVICES"] == [visible(name)]
        assert named["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={amount * 1024}M"
        assert named["ALIYUN_COM_GPU_MEM_CONTAINER"] == named["ALIYUN_COM_GPU_MEM_POD"] == str(amount)
