"""Check 5: the online side runs this very export, as it was meant to be run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from sparsefleet.verify.case import Case
from sparsefleet.verify.export_side import formats_of
from sparsefleet.verify.finding import CheckResult, Finding
from sparsefleet.verify.side import Side

__all__ = ["SettingsCheck"]

_ROWS = "rows"
"""In `expect`: the format of the rows of all tables."""


class SettingsCheck:
    """Version, engine, precision and whatever `expect` names."""

    def of_export(self, case: Case) -> CheckResult:
        manifest = case.model.manifest
        formats = formats_of(manifest)
        findings = []
        wanted = case.config.expect.get(_ROWS)
        for name, found in formats.items():
            if wanted is not None and found != wanted:
                findings.append(
                    Finding(
                        name="other precision",
                        what=name,
                        found=found,
                        wanted=wanted,
                        advice=f"export again with rows={wanted!r}",
                    )
                )
        made = ", ".join(f"{name} {version}" for name, version in manifest.made_by.items())
        said = f"version {manifest.digest}, rows {_all(formats)}, made by {made}"
        return CheckResult.of("settings", case.model.name, said, findings)

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        settings, version = side.settings(), side.version()
        if settings is None and version is None:
            return None
        found = dict(settings or {})
        findings = _precision(case, found) + _version(case, version)
        findings += _expected(case, found) + _moment(case, side) + _packages(case, found)
        said = ", ".join(f"{name} {value}" for name, value in found.items() if " " not in name)
        return CheckResult.of(
            "settings", side.name, f"version {version}, {said}", findings, {"settings": found}
        )


def _all(formats: Mapping[str, str]) -> str:
    return " and ".join(sorted(set(formats.values()))) or "none"


def _version(case: Case, version: str | None) -> list[Finding]:
    wanted = case.model.manifest.digest
    if version in (None, wanted):
        return []
    previous = case.previous
    is_old = previous is not None and previous.manifest.digest == version
    return [
        Finding(
            name="old version" if is_old else "other version",
            what="the model that is served",
            found=f"{version}" + (", the export before" if is_old else ""),
            wanted=wanted,
            advice="switch the service to the new version, or verify the one it serves",
        )
    ]


def _moment(case: Case, side: Side) -> list[Finding]:
    """Both sides have come equally far with updates."""
    moment, found = case.model.moment, side.updated()
    wanted = None if moment is None else moment.made
    if found == wanted:
        return []
    advice = "give --updates WHERE, where the training publishes them" if wanted is None else ""
    return [
        Finding(
            name="other moment",
            what="updates that are in force",
            found=_time(found),
            wanted=_time(wanted),
            advice=advice,
        )
    ]


def _time(made: float | None) -> str:
    if made is None:
        return "the export as it was written"
    return f"those up to {datetime.fromtimestamp(made, timezone.utc).isoformat()}"


def _packages(case: Case, found: Mapping[str, str]) -> list[Finding]:
    """Other versions of what computes are told, for they need not matter."""
    return [
        Finding(
            name="other package",
            what=name,
            found=found[name],
            wanted=f"{wanted}, which exported it",
            severity="warning",
        )
        for name, wanted in case.model.manifest.made_by.items()
        if name in found and found[name].partition("+")[0] != wanted.partition("+")[0]
    ]


def _precision(case: Case, found: Mapping[str, str]) -> list[Finding]:
    return [
        Finding(name="other precision", what=name, found=found[name], wanted=wanted)
        for name, wanted in formats_of(case.model.manifest).items()
        if name in found and found[name] != wanted
    ]


def _expected(case: Case, found: Mapping[str, str]) -> list[Finding]:
    findings = []
    for name, wanted in case.config.expect.items():
        if name == _ROWS:
            continue
        if found.get(name) == wanted:
            continue
        findings.append(
            Finding(
                name="other setting",
                what=name,
                found=found.get(name, f"none; it tells {', '.join(found) or 'nothing'}"),
                wanted=wanted,
                advice="start the service with the settings that were meant",
                severity="error" if name in found else "warning",
            )
        )
    return findings
