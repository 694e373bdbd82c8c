"""Check 5: the online model runs this export with the intended settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone

from sparsefleet.serving.verify.case import Case
from sparsefleet.serving.verify.report import CheckResult, Finding
from sparsefleet.serving.verify.side import Side
from sparsefleet.serving.verify.sides import formats_of

__all__ = ["SettingsCheck"]

_ROWS = "rows"
"""Key in `expect` for the row format of all tables."""


class SettingsCheck:
    """Compares version, engine, precision and the settings named in `expect`."""

    def of_export(self, case: Case) -> CheckResult:
        manifest = case.model.manifest
        formats = formats_of(manifest)
        findings = []
        wanted = case.config.expect.get(_ROWS)
        for name, found in formats.items():
            if wanted is not None and found != wanted:
                findings.append(
                    Finding(
                        name="precision differs",
                        what=name,
                        found=found,
                        wanted=wanted,
                        advice=f"export again with rows={wanted!r}",
                    )
                )
        made = ", ".join(f"{name} {version}" for name, version in manifest.made_by.items())
        rows = " and ".join(sorted(set(formats.values()))) or "none"
        text = f"version {manifest.digest}, rows {rows}, made by {made}"
        return CheckResult.of("settings", case.model.name, text, findings)

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        settings, version = side.settings(), side.version()
        if settings is None and version is None:
            return None
        found = dict(settings or {})
        findings = _precision(case, found) + _version(case, version)
        findings += _expected(case, found) + _snapshot(case, side) + _packages(case, found)
        text = ", ".join(f"{name} {value}" for name, value in found.items() if " " not in name)
        return CheckResult.of(
            "settings", side.name, f"version {version}, {text}", findings, {"settings": found}
        )


def _version(case: Case, version: str | None) -> list[Finding]:
    wanted = case.model.manifest.digest
    if version in (None, wanted):
        return []
    previous = case.previous
    is_old = previous is not None and previous.manifest.digest == version
    return [
        Finding(
            name="old version" if is_old else "wrong version",
            what="the served model",
            found=f"{version}" + (", the previous export" if is_old else ""),
            wanted=wanted,
            advice="switch the service to the new version, or verify the version it serves",
        )
    ]


def _snapshot(case: Case, side: Side) -> list[Finding]:
    """Check that the export and the side have applied the same updates."""
    snapshot, found = case.model.snapshot, side.updated()
    wanted = None if snapshot is None else snapshot.made
    if found == wanted:
        return []
    advice = (
        "pass --updates with the directory or Redis that training publishes to"
        if wanted is None
        else ""
    )
    return [
        Finding(
            name="updates differ",
            what="applied updates",
            found=_time(found),
            wanted=_time(wanted),
            advice=advice,
        )
    ]


def _time(made: float | None) -> str:
    if made is None:
        return "none since the export"
    return f"all up to {datetime.fromtimestamp(made, timezone.utc).isoformat()}"


def _packages(case: Case, found: Mapping[str, str]) -> list[Finding]:
    """Report different package versions as warnings, since they may not matter."""
    return [
        Finding(
            name="package version differs",
            what=name,
            found=found[name],
            wanted=f"{wanted}, the version that exported the model",
            severity="warning",
        )
        for name, wanted in case.model.manifest.made_by.items()
        if name in found and found[name].partition("+")[0] != wanted.partition("+")[0]
    ]


def _precision(case: Case, found: Mapping[str, str]) -> list[Finding]:
    return [
        Finding(name="precision differs", what=name, found=found[name], wanted=wanted)
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
                name="setting differs",
                what=name,
                found=found.get(name, f"not reported; reported: {', '.join(found) or 'nothing'}"),
                wanted=wanted,
                advice="start the service with the intended settings",
                severity="error" if name in found else "warning",
            )
        )
    return findings


def unchecked_expectations(case: Case, results: Iterable[CheckResult]) -> CheckResult | None:
    """Return a failed check if no side reports a setting that is required, or else None."""
    reported = {_ROWS}
    for result in results:
        reported.update(result.figures.get("settings", ()))
    findings = [
        Finding(
            name="setting differs",
            what=name,
            found=f"no side reports it; reported: {', '.join(sorted(reported))}",
            wanted=wanted,
            advice="correct the name, or name a service with --online that reports it",
        )
        for name, wanted in case.config.expect.items()
        if name not in reported
    ]
    if not findings:
        return None
    return CheckResult.of("settings", case.model.name, "required settings", findings)
