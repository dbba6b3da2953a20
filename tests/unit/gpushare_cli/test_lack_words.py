"""What nodes lack, in words."""

import pytest

from gpushare.model.room import Ask, GpuRoom
from gpushare.placement.lacks import Fragments, Free, Kept, Lack, MoreUse, Nothing, Remainder, Room
from gpushare_cli.explain import lack_words

GIB = 1024


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        (Nothing(), "the policy finds both equal"),
        (
            Free((3 * GIB, 15 * GIB), (1000, 15 * GIB)),
            "with the pod, 3 of 15 GiB of GPU memory would be free on a, and 1000 of 15360 MiB on b",
        ),
        (Remainder(GpuRoom(15 * GIB, 2 * GIB)), "it would leave 2 GiB of a GPU, which few pods here ask for"),
        (MoreUse(), "what the pod would take of the GPUs of a is of more use to other pods"),
        (Kept("T4"), "GPUs of model T4 are kept for pods that need them"),
        (
            Room(Ask(gpus=8, whole=True, cpu_milli=90_500, host_mib=300 * GIB), 1, 0),
            "on a the pod takes the room of 1 pod with 8 whole GPUs, 90.5 CPU and 300 GiB of memory, on b of none",
        ),
        (
            Room(Ask(gpus=1, whole=True), 2.25, 1.5),
            "on a the pod takes the room of 2.2 pods with 1 whole GPU, on b of 1.5 pods",
        ),
        (
            Room(Ask(gpus=2, memory_percent=50), 1, 0.5),
            "on a the pod takes the room of 1 pod with 50 % of each of 2 GPUs, on b of 0.5 pods",
        ),
        (
            Fragments(0.25, -0.1),
            "free GPU memory that usual pods cannot use would change by +0.25 GPUs on a, and by -0.10 on b",
        ),
    ],
)
def test_each_lack_has_its_words(lack: Lack, words: str) -> None:
    assert lack_words.of_lack(lack, "a", "b", "it") == words


@pytest.mark.parametrize(
    ("before", "after", "few_ask", "words"),
    [
        (15 * GIB, 0, False, "all 15 GiB are free, and it takes them"),
        (3 * GIB, 0, False, "3 of 15 GiB are free, and it fills them exactly"),
        (5 * GIB, 2 * GIB, False, "5 of 15 GiB are free, and 2 GiB stay free"),
        (5 * GIB, 100, True, "5 of 15 GiB are free, and 100 MiB stay free, which few pods here ask for"),
    ],
)
def test_each_gpu_has_its_words(before: int, after: int, few_ask: bool, words: str) -> None:
    rooms = GpuRoom(15 * GIB, before), GpuRoom(15 * GIB, after)
    assert lack_words.of_gpu(*rooms, few_ask=few_ask) == words
