"""The bill of materials (CycloneDX): `python -m tests.support.sbom make` writes it, `check` says what is missing from it.

cyclonedx-py reads what is installed, with licences and who needs whom; hashes come from the lock file, the vendored front-end
files from their own lists, and what compiles the TypeScript client from its lock file. What only tests, linters and releases need has the scope `excluded`: it is no part of the product.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tests.support.lock import LOCK, REPO, Pin, pins

BILL = REPO / "deploy" / "sbom.cdx.json"
VENDORED = (REPO / "sentinel" / "platform" / "http" / "static" / "vendor", REPO / "ops_console" / "static" / "vendor")
CLIENT_LOCK = REPO / "deploy" / "sentinel-client-ts" / "package-lock.json"
SHIPPED = ("build", "runtime")
PROJECT = "sentinel-authority"
_ROW = re.compile(
    r"^\| `(?P<folder>[^`]+)` \| (?P<package>[^ |]+)[^|]*\| (?P<version>[^ |]+) \| (?P<licence>[^ |]+) \|", re.MULTILINE
)

Component = dict[str, Any]


def vendored() -> Iterator[Component]:
    """The front-end packages in the tree, each with its files and their hashes."""
    for folder in VENDORED:
        files = [line.split("  ", 1) for line in (folder / "SHA256SUMS").read_text().splitlines()]
        for row in _ROW.finditer((folder / "README.md").read_text()):
            name = f"pkg:npm/{row['package'].replace('@', '%40')}@{row['version']}"
            yield {
                "type": "library", "bom-ref": name, "purl": name, "name": row["package"], "version": row["version"], "scope": "required",
                "licenses": [{"license": {"id": row["licence"]}}],
                "components": [
                    {
                        "type": "file", "bom-ref": str((folder / path).relative_to(REPO)), "name": str((folder / path).relative_to(REPO)),
                        "hashes": [{"alg": "SHA-256", "content": digest}],
                    }
                    for digest, path in files if path.startswith(f"{row['folder']}/")
                ],
            }  # fmt: skip


def compiling() -> Iterator[Component]:
    """The packages that make and check the TypeScript client, which itself needs none."""
    packages = json.loads(CLIENT_LOCK.read_text())["packages"]
    for path, one in sorted(packages.items()):
        if not path:
            continue
        name = path.rpartition("node_modules/")[2]
        purl = f"pkg:npm/{name.replace('@', '%40')}@{one['version']}"
        algorithm, _, digest = one["integrity"].partition("-")
        files = [{"alg": algorithm.replace("sha", "SHA-"), "content": base64.b64decode(digest).hex()}]
        yield {
            "type": "library", "bom-ref": purl, "purl": purl, "name": name, "version": one["version"], "scope": "excluded",
            "licenses": [{"expression": one["license"]}], "hashes": files,
        }  # fmt: skip


def bill(installed: dict[str, Any]) -> dict[str, Any]:
    """The document, from what cyclonedx-py says of the environment."""
    locked = {pin.name: pin for pin in pins(LOCK.read_text())}
    known = {canonicalize_name(one["name"]): one for one in installed["components"]}
    components = [_component(pin, known.get(pin.name)) for pin in locked.values()]
    components += [*vendored(), *compiling()]
    (root,) = (one for name, one in known.items() if name == PROJECT)
    references = {one["bom-ref"] for one in components} | {root["bom-ref"]}
    needs = [
        {"ref": one["ref"], "dependsOn": sorted({*one.get("dependsOn", [])} & references)}
        for one in installed["dependencies"] if one["ref"] in references
    ]  # fmt: skip
    for one in needs:
        if one["ref"] == root["bom-ref"]:
            one["dependsOn"] = sorted({*one["dependsOn"], *(part["bom-ref"] for part in vendored())})
    root = {name: value for name, value in root.items() if name not in ("properties", "externalReferences")}
    # No serial number and no time: the same lock file gives the same document.
    return {
        "$schema": installed["$schema"], "bomFormat": "CycloneDX", "specVersion": installed["specVersion"], "version": 1,
        "metadata": {"component": {**root, "type": "application"}, "tools": installed["metadata"]["tools"]},
        "components": sorted(components, key=lambda one: one["bom-ref"]), "dependencies": sorted(needs, key=lambda one: one["ref"]),
    }  # fmt: skip


def _component(pin: Pin, known: Component | None) -> Component:
    found = {name: value for name, value in (known or {}).items() if name not in ("properties", "externalReferences")}
    if found.get("version", pin.version) != pin.version:
        raise SystemExit(f"Error: {pin.name} {found['version']} is installed and {pin.version} locked; run make env")
    if known and not found.get("licenses") and (said := metadata(pin.name)["License"]):
        found["licenses"] = [{"license": {"name": said}}]  # in words of its own, which cyclonedx-py passes over
    files = [{"alg": "SHA-256", "content": one} for one in pin.hashes]
    return {
        "type": "library", "bom-ref": f"{pin.name}=={pin.version}", "name": pin.name, "version": pin.version, **found,
        "purl": f"pkg:pypi/{pin.name}@{pin.version}", "scope": "required" if pin.section in SHIPPED else "excluded",
        "externalReferences": [{"type": "distribution", "url": f"https://pypi.org/simple/{pin.name}/", "hashes": files}],
    }  # fmt: skip


def faults(told: dict[str, Any]) -> list[str]:
    """What the lock files or the vendored lists have and the bill has not, or otherwise, and the other way round. A line each."""

    def facts(one: Component) -> tuple[Any, ...]:
        parts = [one, *one.get("externalReferences", []), *one.get("components", [])]
        return one["purl"], one["scope"], sorted(each["content"] for part in parts for each in part.get("hashes", []))

    wanted = [*(_component(pin, None) for pin in pins(LOCK.read_text())), *vendored(), *compiling()]
    meant = {one["purl"]: facts(one) for one in wanted}
    there = {one["purl"]: facts(one) for one in told["components"]}
    found = [f"{name} is not in it" for name in sorted(meant.keys() - there.keys())]
    found += [f"{name} is in it and nowhere else" for name in sorted(there.keys() - meant.keys())]
    found += [
        f"{name} has another scope or other hashes"
        for name in sorted(meant.keys() & there.keys())
        if meant[name] != there[name]
    ]
    return found


def _refuse_malformed(text: str) -> None:
    # Only what makes the bill has this library.
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from cyclonedx.validation import make_schemabased_validator

    wrong = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise SystemExit(f"Error: no CycloneDX 1.6: {wrong}")


def main(what: str) -> int:
    """Exit code 0, or 1 with what is wrong on standard error."""
    if what == "make":
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "environment.json"
            tool = Path(sys.executable).with_name("cyclonedx-py")
            subprocess.run(
                [str(tool), "environment", "--output-format", "JSON", "--output-file", str(out), sys.executable],
                check=True,
            )
            text = json.dumps(bill(json.loads(out.read_text())), indent=1, sort_keys=True) + "\n"
        _refuse_malformed(text)
        BILL.write_text(text)
    found = faults(json.loads(BILL.read_text()))
    for line in found:
        print(f"Error: {BILL.relative_to(REPO)}: {line}; run make sbom", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
