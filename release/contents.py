"""What is in the image, as a CycloneDX document, from the lock file that the image is installed from."""

import json
import re
from typing import Any

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
_REMOVED = frozenset({"setuptools"})  # builds the project, and is uninstalled again


def bill(version: str, lock_file: str, python_image: str) -> str:
    """The document; the same for the same lock file.

    Args:
        version: of this project.
        lock_file: requirements/image.txt.
        python_image: the base image, whose publisher tells what is in it.
    """
    found = [(name.lower(), pinned) for name, pinned in _PINNED.findall(lock_file)]
    components = [_library(name, pinned) for name, pinned in sorted(found) if name not in _REMOVED]
    components.append({"type": "container", "bom-ref": python_image, "name": python_image})
    root = {"type": "application", "bom-ref": "gpushare", "name": "gpushare", "version": version}
    root["purl"] = f"pkg:pypi/gpushare@{version}"
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": [{"ref": "gpushare", "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(document, indent=1) + "\n"


def _library(name: str, version: str) -> dict[str, str]:
    url = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
