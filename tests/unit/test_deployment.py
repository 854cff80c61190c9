"""What an installation is made from (deploy/) names only commands, settings, ports and paths that the programs have, and gives what each requires."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ops_console.accounts.passwords import _hasher
from ops_console.settings import ConsoleSettings, load_console_settings
from sentinel.authority.settings import Settings, load_settings
from sentinel.export.settings import ExportSettings, load_export_settings
from sentinel.platform.command_line import WRONG_USE
from sentinel.platform.http.asgi import HEALTH
from sentinel.platform.resources import policies_dir
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.store.address import EMBEDDED
from tests.support.scripted_server import ScriptedServer
from tests.support.settings_table import render
from worker.orders.metrics import _OPEN as _OPEN_ORDERS
from worker.orders.settings import OrderReviewSettings, load_order_settings
from worker.refunds.metrics import _OPEN
from worker.refunds.settings import WorkerSettings, read_settings

REPO = Path(__file__).resolve().parents[2]
DEPLOY = REPO / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXAMPLES = sorted((DEPLOY / "systemd").glob("*.env.example"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
OURS = {name: service for name, service in COMPOSE.items() if "build" in service}

SENDERS = set(re.findall(r"^\| `(\w+)` \|", render().split("## Senders of orders")[1].split("\n## ")[0], re.MULTILINE))
PROGRAMS: dict[str, tuple[type[Any], Callable[[], Any]]] = {
    "authority": (Settings, load_settings),
    "worker": (WorkerSettings, read_settings),
    "orders": (OrderReviewSettings, load_order_settings),
    "console": (ConsoleSettings, load_console_settings),
    "board": (ConsoleSettings, load_console_settings),
    "export": (ExportSettings, load_export_settings),
}
HEALTH_PORTS = {
    "SENTINEL_HEALTH_PORT": 9860, "SENTINEL_CONSOLE_HEALTH_PORT": 9861, "SENTINEL_ORDERS_HEALTH_PORT": 9862,
    "SENTINEL_BOARD_HEALTH_PORT": 9863, "WORKER_HEALTH_PORT": 9864, "SENTINEL_EXPORT_HEALTH_PORT": 9865,
}  # fmt: skip
"""The same in every form of an installation, so that one set of alerts and scrapes fits all."""
PUBLIC_IDS = "SENTINEL_PUBLIC_ID_SECRETS"
"""Set where an installation does without the secret that the database keeps."""
SECRET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"


def settings_of(program: str) -> set[str]:
    """The names of a program's settings; an administrator's commands read the authority's, the sender's and `PUBLIC_IDS`."""
    if program == "migrate":
        return {"SENTINEL_DATABASE_URL", EMBEDDED}
    if program == "admin":
        return settings_of("authority") | settings_of("export") | {PUBLIC_IDS}
    kind, _ = PROGRAMS[program]
    own = {field.metadata["env"] for field in kind.__dataclass_fields__.values()}
    return own | {EMBEDDED} | (SENDERS if program == "orders" else set())


def unit_values(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def program_of(unit: Path) -> str:
    return unit.stem.removeprefix("sentinel-")


def example(program: str) -> dict[str, str]:
    """The example environment of a program, as systemd reads it."""
    lines = (DEPLOY / "systemd" / f"{program}.env.example").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if line and line[0] != "#")
    return {name: value.strip("'") for name, value in pairs}


def filled(name: str, value: str) -> str:
    """A value with what its reader is to fill in."""
    made = (
        value.replace("PASSWORD", "secret").replace("DATABASE_HOST", "db.example").replace("_HOST", ".example").lower()
    )
    return made or SECRET


def scripts() -> dict[str, str]:
    setup = configparser.ConfigParser()
    setup.read(REPO / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].split("\n")
    return dict((part.strip() for part in line.split("=", 1)) for line in lines if line.strip())  # type: ignore[misc]


def find_command(words: list[str]) -> click.Command:
    """The command that a line of words runs. Raises `LookupError` for one that is not there, or an option that it does not take."""
    program, *rest = Path(words[0]).name, *words[1:]
    if program == "python" and rest[0] == "-m":
        found: click.Command = importlib.import_module(f"{rest[1]}.__main__").command
        rest = rest[2:]
    elif program in scripts():
        module, _, name = scripts()[program].partition(":")
        found = getattr(importlib.import_module(module), name)
    else:
        raise LookupError(program)
    while isinstance(found, click.Group) and rest:
        inner = found.get_command(click.Context(found), rest[0])
        if inner is None:
            raise LookupError(" ".join(words))
        found, rest = inner, rest[1:]
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if unknown := [word for word in rest if word.startswith("-") and word not in known]:
        raise LookupError(f"{' '.join(words)}: {unknown}")
    return found


def graceful_seconds(command: click.Command) -> int:
    """How long it drains after SIGTERM, as shipped; the worker and the sender end by themselves within their calls."""
    return next((int(one.default) for one in command.params if one.name == "graceful_seconds"), 0)  # type: ignore[call-overload]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any setting of ours."""
    every = set().union(*(settings_of(program) for program in PROGRAMS)) | {"SENTINEL_DATABASE_URL"}
    for name in every:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def unreadable(program: str, env: dict[str, str], bare: pytest.MonkeyPatch) -> str:
    """What the program says of that environment; "" where it starts."""
    for name, value in env.items():
        bare.setenv(name, value)
    try:
        PROGRAMS[program][1]()
    except UnsafeConfiguration as error:
        return error.detail
    return ""


# systemd ---------------------------------------------------------------------------------------------------------------


def test_there_is_a_unit_and_an_example_for_every_program() -> None:
    assert {program_of(unit) for unit in UNITS} == set(PROGRAMS)
    assert {path.name.removesuffix(".env.example") for path in EXAMPLES} == {*PROGRAMS, "admin"}


@pytest.mark.parametrize("unit", UNITS, ids=program_of)
def test_a_unit_runs_a_command_that_is_there_and_waits_for_it_to_drain(unit: Path) -> None:
    text = unit.read_text()
    (line,) = unit_values(text, "ExecStart")
    command = find_command(shlex.split(line))
    assert int(unit_values(text, "TimeoutStopSec")[0]) >= graceful_seconds(command) + 5
    assert unit_values(text, "RestartPreventExitStatus") == [str(WRONG_USE)], (
        "what a person must mend is not tried again"
    )
    assert unit_values(text, "EnvironmentFile") == [f"/etc/sentinel/{program_of(unit)}.env"]
    assert unit_values(text, "Environment") == [f"{EMBEDDED}=off"]
    assert unit_values(text, "LogRateLimitIntervalSec") == ["0"], "journald drops no line to be woken by"


def test_units_differ_only_in_what_a_program_is_and_keeps() -> None:
    def shut_in(unit: Path) -> str:
        return unit.read_text().partition("DynamicUser=")[2]

    assert {shut_in(unit) for unit in UNITS} == {shut_in(UNITS[0])}
    assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="} <= set(
        shut_in(UNITS[0]).split("\n")
    )


@pytest.mark.parametrize("program", [*PROGRAMS, "admin"])
def test_an_example_names_only_settings_that_its_program_has(program: str) -> None:
    assert example(program).keys() <= settings_of(program)


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_once_filled_in_is_all_that_its_program_requires(program: str, bare: pytest.MonkeyPatch) -> None:
    assert unreadable(program, {name: filled(name, value) for name, value in example(program).items()}, bare) == ""


NAMES_NOBODY = "SENTINEL_PUBLIC_AGENTS"
"""The one that says something where it is set and empty."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_empty_variable_is_one_that_is_not_set(program: str, bare: pytest.MonkeyPatch) -> None:
    kind, load = PROGRAMS[program]
    given = {name: filled(name, value) for name, value in example(program).items() if name != "SENTINEL_POLICIES_DIR"}
    for name, value in given.items():
        bare.setenv(name, value)
    wanted = load()
    names = {field.metadata["env"] for field in kind.__dataclass_fields__.values()}
    for name in names - given.keys() - {NAMES_NOBODY}:
        bare.setenv(name, "")
    assert load() == wanted
    assert getattr(wanted, "policies_dir", policies_dir()) == policies_dir()


def test_no_agent_is_named_on_the_board_where_the_setting_is_set_and_empty(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("SENTINEL_REQUIRE_SECOND_FACTOR", "nobody")
    assert load_console_settings().public_agents != ""
    bare.setenv(NAMES_NOBODY, "")
    assert load_console_settings().public_agents == ""


@pytest.mark.parametrize(
    ("program", "name"),
    [("authority", "SENTINEL_SECRET_KEYS"), ("worker", "SENTINEL_REFUND_AGENT_API_KEY"), ("orders", "SENTINEL_ORDERS_API_KEY"),
     ("export", "SENTINEL_EXPORT_SECRETS")],
)  # fmt: skip
def test_mutant_an_example_without_a_required_setting_is_refused(
    program: str, name: str, bare: pytest.MonkeyPatch
) -> None:
    env = {one: filled(one, value) for one, value in example(program).items() if one != name}
    assert name in unreadable(program, env, bare)


def test_a_secret_that_two_programs_share_stands_in_the_examples_of_the_same_programs_as_in_compose() -> None:
    for secret in ("CONFIRM_SECRETS", "SENTINEL_EXPORT_SECRETS"):
        examples = {program for program in (*PROGRAMS, "admin") if secret in example(program)}
        assert examples == {name for name, service in OURS.items() if secret in service["environment"]}, secret


def test_a_secret_that_commands_read_too_is_replaced_where_they_are_run() -> None:
    told = render().split("## Replacing secrets")[1]
    steps = {line.split("`")[1]: line for line in told.splitlines() if line.startswith("| `")}
    (shared,) = (name for name in example("admin") if name.endswith("_SECRETS"))
    first, shown, dropped = re.split(r" [23]\. ", steps[shared])
    assert "`admin.env`" in first and "`sentinel-admin`" in first
    assert "With that environment" in shown and "both places" in dropped
    assert "`sentinel proof compare` and `sentinel public-ids`" in steps["SENTINEL_PUBLIC_ID_SECRETS"].split(":")[0]


def test_mutants_a_command_or_an_option_that_is_not_there_is_found() -> None:
    for line in ("sentinel server", "sentinell serve", "sentinel serve --workers 2", "retail-refund-agent --forever"):
        with pytest.raises(LookupError):
            find_command(line.split())


# containers ------------------------------------------------------------------------------------------------------------

COMPOSE_PROGRAMS = {**{name: name for name in PROGRAMS}, "migrate": "migrate", "admin": "admin"}


def test_before_compose_migrates_to_a_newer_schema_every_program_is_stopped_and_all_are_made_anew() -> None:
    """`up` leaves services of a profile that is not named as they are."""
    steps = (REPO / "docs" / "deployment.md").read_text().split("## Containers")[1].split("\n## ")[0].split("```")[3]
    stopped, started = (shlex.split(line, comments=True) for line in re.findall(r"docker compose (.*)", steps))
    profiles = {profile for name in PROGRAMS for profile in OURS[name].get("profiles", [])}
    options = ["-f", "deploy/compose.yaml", *(word for one in profiles for word in ("--profile", one))]
    assert stopped[: len(options) + 1] == [*options, "stop"] and set(stopped[len(options) + 1 :]) == set(PROGRAMS)
    assert started == [*options, "up", "--build", "--detach"]


def test_a_password_that_is_replaced_in_compose_reaches_the_programs_of_every_profile() -> None:
    (row,) = (line for line in render().splitlines() if line.startswith("| Database passwords |"))
    profiles = {profile for name in PROGRAMS for profile in OURS[name].get("profiles", [])}
    named = [word for one in sorted(profiles) for word in ("--profile", one)]
    (command,) = re.findall(r"`docker compose ([^`]*)`", row)
    assert command.split() == ["-f", "deploy/compose.yaml", *named, "up", "--detach"]


def test_compose_runs_every_program_and_names_commands_and_settings_that_are_there() -> None:
    assert OURS.keys() == COMPOSE_PROGRAMS.keys()
    for name, service in OURS.items():
        command = find_command([*service.get("entrypoint", []), *service["command"]])
        assert service["environment"].keys() <= settings_of(name), name
        if "stop_grace_period" in service:
            assert int(service["stop_grace_period"].removesuffix("s")) >= graceful_seconds(command) + 5, name
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name


@pytest.mark.parametrize("program", PROGRAMS)
def test_compose_gives_each_program_all_that_it_requires(program: str, bare: pytest.MonkeyPatch) -> None:
    env = {
        name: re.sub(r"\$\{(\w+)(?::[^}]*)?\}", SECRET, value) for name, value in OURS[program]["environment"].items()
    }
    assert unreadable(program, env, bare) == ""


def test_a_secret_of_compose_is_made_by_the_script_and_reaches_only_who_needs_it() -> None:
    whose: dict[str, set[str]] = {}
    for name, service in COMPOSE.items():
        for value in service["environment"].values():
            for secret in re.findall(r"\$\{(\w+)", value):
                whose.setdefault(secret, set()).add(name)
    script = (DEPLOY / "make_env.sh").read_text()
    looped = re.findall(r"for name in ([A-Z_ ]+); do\n\s+secret=.*\n\s+echo \"\$?\{?name\}?(\w*)=", script)
    made = {f"{name}{suffix}" for names, suffix in looped for name in names.split()}
    keys = {"SENTINEL_REFUND_AGENT_API_KEY", "SENTINEL_ORDERS_API_KEY"}
    assert whose.keys() == made | keys | {PUBLIC_IDS}, "keys are the authority's to make"
    administrators = {"POSTGRES_PASSWORD": {"database", "migrate", "logins", "admin"}}
    shared = {
        "CONFIRM_SECRETS": {"worker", "board"}, "SENTINEL_EXPORT_SECRETS": {"export", "admin"},
        "BOARD_PASSWORD": {"logins", "console", "board"}, PUBLIC_IDS: {"console", "board", "admin"},
    }  # fmt: skip
    for secret, names in whose.items():
        expected = (administrators | shared).get(secret)
        assert names == expected if expected else len(names - {"logins"}) == 1, secret


def test_the_script_writes_all_secrets_or_none_and_can_be_run_again(tmp_path: Path) -> None:
    """The finding: without openssl it left a file without secrets, which neither it nor compose would take."""
    script, programs = shutil.copy(DEPLOY / "make_env.sh", tmp_path), tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "mv", "rm"):
        (programs / name).symlink_to(shutil.which(name) or name)

    def run() -> int:
        return subprocess.run(["/bin/sh", script], env={"PATH": str(programs)}, capture_output=True).returncode

    assert run() != 0 and [*tmp_path.glob(".env*")] == []
    openssl = programs / "openssl"
    for says, ends in (('test "$3" = 24', 1), ("true", 0)):  # breaks off in the middle; works
        openssl.write_text(f'#!/bin/sh\n{says} && echo "secret$3"\n')
        openssl.chmod(0o755)
        assert run() == ends
        assert [one.name for one in tmp_path.glob(".env*")] == ([] if ends else [".env"])
    written = dict(line.split("=") for line in (tmp_path / ".env").read_text().splitlines())
    assert len(written) == 13 and set(written.values()) == {"secret24", "secret32"}
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert run() == 1, "programs run with its secrets"


def test_compose_publishes_only_on_this_machine_the_ports_of_the_programs() -> None:
    published = {port for service in COMPOSE.values() for port in service.get("ports", [])}
    ports = (Settings().port, ConsoleSettings().port, ConsoleSettings().board_port)
    assert published == {f"127.0.0.1:{port}:{port}" for port in ports}


def test_compose_asks_each_program_whether_it_is_ready_where_it_says_so() -> None:
    for name in PROGRAMS:
        asked = OURS[name]["healthcheck"]["test"][-1]
        told = {value for variable, value in OURS[name]["environment"].items() if variable in HEALTH_PORTS}
        assert told == set(re.findall(r"\b9\d{3}\b", asked)) != set(), name
        assert re.search(r"/\w+z", asked).group() in HEALTH  # type: ignore[union-attr]


def test_compose_asks_past_the_proxy_that_docker_puts_into_the_environment() -> None:
    asked = {re.sub(r"\b9\d{3}\b", "PORT", OURS[name]["healthcheck"]["test"][-1]) for name in PROGRAMS}
    (program,) = asked
    with ScriptedServer().running() as server, ScriptedServer().running() as proxy:
        server.script = lambda asked: asked.answer(200, b"{}")
        done = subprocess.run(
            [sys.executable, "-c", program.replace("PORT", str(server.port))], env={**os.environ, "http_proxy": proxy.url},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, len(server.asked), proxy.asked) == (0, 1, []), done.stderr


def test_the_database_of_compose_takes_as_many_connections_as_the_roles_may_open() -> None:
    limits = re.findall(r"\('(?:sentinel_\w+|board_reader)', (\d+)\)", (DEPLOY / "roles.sql").read_text())
    assert len(limits) == 7
    (most,) = re.findall(r"max_connections=(\d+)", " ".join(COMPOSE["database"]["command"]))
    assert int(most) >= sum(map(int, limits)) + 10, "some are left for administrators"


@pytest.mark.parametrize(
    ("version", "found"), [("3, 10", ""), ("3, 11", "python3"), ("3, 13", "python3"), ("3, 14", "")]
)
def test_the_environment_is_made_of_a_python_that_the_lock_is_for(version: str, found: str, tmp_path: Path) -> None:
    stub = tmp_path / "python3"
    stub.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] || exit 0\nexec {shlex.quote(sys.executable)} -c "import sys; sys.version_info = ({version}); $2"\n'
    )
    stub.chmod(0o755)
    ran = subprocess.run(
        ["/bin/sh", str(DEPLOY / "find_python.sh")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == found
    texts = [
        (REPO / name).read_text()
        for name in ("requirements.txt", "README.md", "CONTRIBUTING.md", "Makefile", "docs/deployment.md")
    ]
    assert all("Python 3.11 to 3.13" in one for one in texts)


@pytest.mark.parametrize(
    ("place", "form"),
    [
        ("docs/settings.md", r"\| `sentinel_worker` \| (?P<limit>\d+) \| `WORKER_LANES` \+ (?P<spare>\d+), (?P<opened>\d+) as shipped"),
        ("docs/deployment.md", r"\| `sentinel_worker` \| `WORKER_LANES` \+ (?P<spare>\d+), (?P<opened>\d+) \| (?P<limit>\d+) \|"),
        ("deploy/kubernetes/worker.yaml", r"WORKER_LANES \+ (?P<spare>\d+) within .*: (?P<opened>\d+) of (?P<limit>\d+) for"),
    ],
)  # fmt: skip
def test_how_many_connections_a_worker_opens_is_said_as_it_does(place: str, form: str) -> None:
    (said,) = re.finditer(form, (REPO / place).read_text())
    (limit,) = re.findall(r"\('sentinel_worker', (\d+)\)", (DEPLOY / "roles.sql").read_text())
    opened = WorkerSettings().connections
    assert (said["spare"], said["opened"], said["limit"]) == (str(opened - WorkerSettings().lanes), str(opened), limit)


def test_the_image_has_no_pip_no_root_and_no_database_and_its_base_a_version() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert re.search(r"^ARG BASE=\S+:\d+\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    assert text.count("pip uninstall --yes pip") == len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    assert re.search(r"^USER [1-9]\d+$", text, re.MULTILINE) and f"{EMBEDDED}=off" in text
    assert "--require-hashes" in text
    find_command(yaml.safe_load(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[-1]))
    sections = re.findall(r"/\^# == (\w+) ==/", text)
    assert sections == ["runtime", "test"] and all(
        f"# == {one} ==" in (REPO / "requirements.txt").read_text() for one in sections
    )


def locked(*, extra_packages: str = "none", form: str = "") -> set[str]:
    """The packages that an installation gets by the sed commands of the page or of the Containerfile."""
    text = (REPO / "docs" / "deployment.md").read_text() if form == "page" else (DEPLOY / "Containerfile").read_text()
    found = set()
    for command in re.findall(r"(sed [^>]*?requirements\.txt) >", text):
        script = command.replace("/build/requirements.txt", "requirements.txt")
        done = subprocess.run(["sh", "-c", script], cwd=REPO, env={**os.environ, "EXTRA_PACKAGES": extra_packages},
                              capture_output=True, text=True, check=True)  # fmt: skip
        found |= {name.lower() for name in re.findall(r"^([A-Za-z0-9_.-]+)==", done.stdout, re.MULTILINE)}
    return found


def needed(requirement: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """What a requirement needs with the extras, on this machine."""
    parsed = Requirement(requirement)
    found = {canonicalize_name(parsed.name)}
    for one in importlib.metadata.requires(parsed.name) or ():
        further = Requirement(one)
        wanted = parsed.extras | extras or {""}
        if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in wanted):
            found |= needed(f"{further.name}[{','.join(further.extras)}]")
    return found


@pytest.mark.parametrize("form", ["page", "image"])
def test_an_installation_with_extras_has_all_that_they_need_from_the_lock_file(form: str) -> None:
    (packages,) = re.findall(r"EXTRA_PACKAGES='([^']+)'", (REPO / "docs" / "deployment.md").read_text())
    plain, full = locked(form="image"), locked(extra_packages=packages, form=form)
    config = configparser.ConfigParser()
    config.read(REPO / "setup.cfg")
    for extra in ("stripe", "otel"):
        wanted = set().union(*map(needed, config["options.extras_require"][extra].split("\n")[1:]))
        assert wanted <= full, f"{extra}: {sorted(wanted - full)}"
        assert not wanted <= plain, "an extra is one"


# Kubernetes ------------------------------------------------------------------------------------------------------------


def manifests() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests():
        if one["kind"] in ("Deployment", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        if one["kind"] == "Pod":
            yield one["metadata"]["name"], one["spec"]


def containers() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(program, container, pod) of what runs our image."""
    return [
        (one["name"], one, pod)
        for _, pod in pods()
        for one in (*pod.get("initContainers", []), *pod["containers"])
        if "/sentinel:" in one["image"]
    ]


def test_kubernetes_has_every_program_the_migration_and_an_authority_beside_an_agent() -> None:
    assert sorted(name for name, _, _ in containers()) == sorted([*PROGRAMS, "authority", "migrate", "admin"])
    kinds = [one["kind"] for one in manifests()]
    assert {kind: kinds.count(kind) for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy")} == {
        "Service": 4, "PodDisruptionBudget": 2, "NetworkPolicy": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("secret", "names"),
    [("SENTINEL_EXPORT_SECRETS", {"export", "admin"}), (PUBLIC_IDS, {"console", "board", "admin"})],
)
def test_a_secret_that_commands_read_too_reaches_them_and_its_programs_in_every_form_of_a_container(
    secret: str, names: set[str]
) -> None:
    pods_with = {name for name, container, _ in containers() if secret in {one["name"] for one in container["env"]}}
    assert pods_with == {name for name, service in OURS.items() if secret in service["environment"]} == names


@pytest.mark.parametrize(("program", "container", "pod"), containers())
def test_a_container_runs_a_command_that_is_there_with_settings_that_are(
    program: str, container: dict[str, Any], pod: dict[str, Any], bare: pytest.MonkeyPatch
) -> None:
    waiting_for_commands = ["sleep", str(pod.get("activeDeadlineSeconds"))]
    drains = 0 if container["command"] == waiting_for_commands else graceful_seconds(find_command(container["command"]))
    env = {one["name"]: one for one in container["env"]}
    assert env.keys() <= settings_of(program)
    assert all(one["valueFrom"]["secretKeyRef"]["key"] == name for name, one in env.items() if "valueFrom" in one)
    waits = 5 if "lifecycle" in container else 0
    assert pod.get("terminationGracePeriodSeconds", 30) >= drains + waits + 5
    if program in PROGRAMS:
        address = "postgresql://a:b@db.example/sentinel"
        given = {
            name: one.get("value") or (address if name.endswith("_DATABASE_URL") else SECRET)
            for name, one in env.items()
        }
        assert unreadable(program, given, bare) == ""


@pytest.mark.parametrize(("program", "container", "pod"), [one for one in containers() if one[0] in PROGRAMS])
def test_probes_ask_where_the_program_answers(program: str, container: dict[str, Any], pod: dict[str, Any]) -> None:
    env = {one["name"]: one.get("value") for one in container["env"]}
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    (variable,) = HEALTH_PORTS.keys() & env.keys()
    assert env[variable] == str(HEALTH_PORTS[variable]) == str(ports["health"])
    host = variable.removesuffix("_PORT").replace("BOARD", "CONSOLE") + "_HOST"
    assert env[host] == "0.0.0.0", "the kubelet asks from outside the pod"
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert all(one["port"] == "health" and one["path"] in HEALTH for one in probes.values())
    assert (probes["liveness"]["path"], probes["readiness"]["path"]) == ("/healthz", "/readyz"), (
        "a database that is away restarts nobody"
    )


def test_ports_between_pods_are_the_ones_that_are_listened_on() -> None:
    listened = {port["containerPort"] for _, container, _ in containers() for port in container.get("ports", [])}
    outside = {53, 443, 5432, 587}
    for one in manifests():
        rules = (
            [*one["spec"].get("ingress", []), *one["spec"].get("egress", [])] if one["kind"] == "NetworkPolicy" else []
        )
        named = {port["port"] for rule in rules for port in rule["ports"]}
        assert named <= listened | outside, one["metadata"]
    services = {one["metadata"]["name"]: one["spec"]["ports"] for one in manifests() if one["kind"] == "Service"}
    console = ConsoleSettings()
    ports = {
        "authority": Settings().port,
        "console": console.port,
        "board": console.board_port,
        "orders": OrderReviewSettings().port,
    }
    assert {name: [port["port"] for port in found] for name, found in services.items()} == {
        f"sentinel-{name}": [port] for name, port in ports.items()
    }  # fmt: skip


def test_what_everybody_reaches_has_no_secret_by_which_anything_is_decided() -> None:
    forbidden = {"SENTINEL_DATABASE_URL", "SENTINEL_SECRET_KEYS", "SENTINEL_SECOND_FACTOR_SECRETS", "CONSOLE_PASSWORD"}
    (pod,) = (container for name, container, _ in containers() if name == "board")
    kubernetes = {one["name"] for one in pod["env"]}
    compose = {*OURS["board"]["environment"], *re.findall(r"\$\{(\w+)", str(OURS["board"]["environment"]))}
    for names in (kubernetes, compose, set(example("board"))):
        assert "SENTINEL_PUBLIC_DATABASE_URL" in names and not names & forbidden


def test_one_viewer_of_the_board_never_has_every_place_of_its_live_stream() -> None:
    (pod,) = (container for name, container, _ in containers() if name == "board")
    forms: dict[str, dict[str, Any]] = {
        "systemd": example("board"), "compose": OURS["board"]["environment"],
        "kubernetes": {one["name"]: one.get("value") for one in pod["env"]},
    }  # fmt: skip
    shipped = ConsoleSettings()
    for form, env in forms.items():
        of_one = int(env.get("SENTINEL_BOARD_MAX_CONNECTIONS_PER_ADDRESS", shipped.board_max_connections_per_address))
        assert of_one < int(env.get("SENTINEL_CONSOLE_MAX_STREAMS", shipped.max_streams)), form


def test_no_pod_runs_as_root_or_with_more_than_it_needs() -> None:
    for name, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"], name
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], name
            assert context["capabilities"] == {"drop": ["ALL"]} and container["resources"]["limits"]["memory"], name


def test_the_console_has_memory_for_a_password_that_is_checked_in_each_of_its_threads() -> None:
    (pod,) = (container for name, container, _ in containers() if name == "console")
    number, unit = re.fullmatch(r"(\d+)([MG])i", pod["resources"]["limits"]["memory"]).groups()  # type: ignore[union-attr]
    mebibytes = int(number) * {"M": 1, "G": 1024}[unit]
    of_itself = 256
    assert mebibytes >= of_itself + ConsoleSettings().threads * _hasher.memory_cost / 1024


def test_health_ports_are_the_same_in_every_form() -> None:
    told = [pair for program in PROGRAMS for pair in example(program).items()]
    told += [pair for service in OURS.values() for pair in service["environment"].items()]
    found = {(name, int(value)) for name, value in told if name in HEALTH_PORTS}
    assert found == set(HEALTH_PORTS.items())


def test_the_guide_makes_a_secret_of_kubernetes_only_after_the_keys_that_stand_in_it_and_each_before_it_is_used() -> (
    None
):
    steps = (REPO / "docs" / "deployment.md").read_text().split("## Kubernetes")[1].split("```")[1].splitlines()

    def first(*words: str) -> int:
        return next(n for n, line in enumerate(steps) if all(word in line for word in words))

    names = re.findall(r"[a-z]+", steps[first("for name in")].split(" in ")[1].split(";")[0])
    secrets = {
        one["valueFrom"]["secretKeyRef"]["name"] for _, container, _ in containers() for one in container["env"]
        if "valueFrom" in one
    }  # fmt: skip
    assert secrets == {"sentinel-admin", *(f"sentinel-{name}" for name in names)}
    assert first("delete job") < first("apply", "migrate.yaml") <= first("wait", "migrate") < first("logins.sql")
    assert first("logins.sql") < first("keys create", "retail-refund-agent") < first("for name in")
    assert first("keys create", "order-review") < first("for name in") < first("apply", "authority.yaml")
    applied = {
        f"{name}.yaml" for line in steps if "apply" in line for name in re.findall(r"kubernetes/(\w+)\.yaml", line)
    }
    assert applied == {path.name for path in MANIFESTS} - {"agent-with-sidecar.yaml"}


def test_a_migration_is_given_as_long_as_it_takes() -> None:
    (job,) = (one for one in manifests() if one["kind"] == "Job")
    assert "activeDeadlineSeconds" not in job["spec"] and "activeDeadlineSeconds" not in job["spec"]["template"]["spec"]
    assert "takes longer than this waits" in (REPO / "docs" / "deployment.md").read_text().split("## Kubernetes")[1]


def test_before_kubernetes_migrates_to_a_newer_schema_every_program_is_stopped() -> None:
    """Readiness stops nobody who needs no Service."""
    steps = (REPO / "docs" / "deployment.md").read_text().split("## Kubernetes")[1].split("```")[3]
    stopped, migrated = steps.index("kubectl scale --replicas=0"), steps.index("kubernetes/migrate.yaml")
    assert stopped < steps.index("kubectl wait --for=delete pod") < migrated
    ours = {one["metadata"]["name"] for one in manifests() if one["kind"] == "Deployment"} - {"your-agent"}
    assert set(re.findall(r"deployment/(\S+)", steps[stopped:migrated])) == ours
    assert set(re.findall(r"kubernetes/(\w+)\.yaml", steps)) == {name.removeprefix("sentinel-") for name in ours} | {
        "migrate"
    }


# the guide -------------------------------------------------------------------------------------------------------------


def test_the_guide_names_only_settings_and_commands_that_are_there() -> None:
    text = (REPO / "docs" / "deployment.md").read_text()
    named = set(re.findall(r"\b(?:SENTINEL|WORKER|ORDERS|CONFIRM|SMTP|SLACK|SHOP)_[A-Z_]*[A-Z]\b", text))
    roles = set(re.findall(r"\\getenv \w+ (\w+)", (DEPLOY / "logins.sql").read_text()))
    assert named - roles <= set(re.findall(r"`([A-Z_]+)`", render()))
    lines = re.findall(
        r"^(?:/opt/sentinel/bin/)?((?:sentinel|worker|retail-refund-agent) [a-z].*?)(?: *[#|>].*)?$", text, re.MULTILINE
    )
    lines += re.findall(r"`((?:sentinel|worker|retail-refund-agent) [a-z][^`]*)`", text)
    assert len(lines) > 10
    for line in lines:
        find_command([word for word in shlex.split(line) if word != "…"])
    assert {str(port) for port in HEALTH_PORTS.values()} <= set(re.findall(r"\b9\d{3}\b", text))


def test_before_a_backup_is_restored_every_program_is_stopped_and_before_one_runs_is_revoked_again() -> None:
    steps = (REPO / "docs" / "runbooks.md").read_text().split("\n## Restore a backup\n")[1].split("\n## ")[0]
    stopped = re.findall(r"`systemctl stop ([a-z -]+)`", steps)
    assert [set(one.split()) for one in stopped] == [{unit.stem for unit in UNITS}]
    again = steps.split("### Revoke again after a restore")[1]
    for command in (
        "operators sign-out-everybody",
        "operators deactivate",
        "keys revoke",
        "halts set",
        "switches off",
        "webhooks disable",
    ):
        assert f"`sentinel {command}" in again, command
    assert steps.index("systemctl stop") < steps.index("(#revoke-again-after-a-restore)") < steps.index("\n3. ")


def test_the_runbooks_name_only_commands_that_are_there() -> None:
    lines = re.findall(
        r"`((?:sentinel|worker|retail-refund-agent) [^`]*)`", (REPO / "docs" / "runbooks.md").read_text()
    )
    assert len(lines) > 30
    for line in lines:
        find_command([word for word in shlex.split(line) if word != "…"])


def test_an_upgrade_by_the_guide_moves_the_link_that_the_units_run(tmp_path: Path) -> None:
    text = (REPO / "docs" / "deployment.md").read_text()
    moved = re.findall(r"ln -\w+ (sentinel-[0-9.]+) (/opt/sentinel)\b", text)
    made = re.findall(r"/opt/(sentinel-[0-9.]+)/bin/", text)
    assert len(moved) == 2 and [name for name, _ in moved] == sorted(set(made))
    assert re.findall(r"-m venv /opt/(\S+)", text) == [moved[0][0]]
    assert {shlex.split(unit_values(unit.read_text(), "ExecStart")[0])[0].rpartition("/bin/")[0] for unit in UNITS} == {
        "/opt/sentinel"
    }
    for name, link in moved:
        (tmp_path / name).mkdir()
        (command,) = re.findall(rf"ln -\w+ {re.escape(name)} {link}\b", text)
        subprocess.run(["sh", "-c", command.replace(link, str(tmp_path / "sentinel"))], check=True)
        assert (tmp_path / "sentinel").resolve() == tmp_path / name


def test_what_runs_as_the_link_s_python_is_restarted_at_once_when_the_link_moved() -> None:
    steps = (REPO / "docs" / "deployment.md").read_text().split("## Upgrade")[1].split("\n## ")[0]
    (row,) = (line for line in steps.splitlines() if line.startswith("| the database's |"))
    by_link = {program_of(unit) for unit in UNITS if "/bin/python " in unit_values(unit.read_text(), "ExecStart")[0]}
    assert set(re.findall(r"restart (\w+) and (\w+) at once", row)[0]) == by_link


RULES = [rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
READY = {
    "SentinelDoesNotDecide": "sentinel_ready",
    "SentinelNoWorker": "worker_ready",
    "SentinelNoIntake": "orders_ready",
    "SentinelNoSender": "sentinel_export_ready",
}


def test_a_program_whose_figures_an_alert_asks_for_is_missed_when_it_does_not_run() -> None:
    rules = [rule["expr"] for rule in RULES]
    prefixes = ("sentinel_export", "worker", "orders", "sentinel")

    def owner(figure: str) -> str:
        return next(prefix for prefix in prefixes if figure.startswith(prefix))

    asked = {owner(name) for expr in rules for name in re.findall(r"\b(?:sentinel|worker|orders)_[a-z_]+", expr)}
    missed = {owner(name) for expr in rules for name in re.findall(r"absent\((\w+)\)", expr)}
    assert asked == missed == set(prefixes)


def test_whether_a_program_does_its_work_is_asked_of_what_readyz_says() -> None:
    """A database that answers may still refuse every write, and a program's key may be revoked."""
    asked = {rule["alert"]: rule["expr"] for rule in RULES}
    for alert, figure in READY.items():
        assert asked[alert] == f"absent({figure}) or max({figure}) == 0"
    of_a_tenant = asked["SentinelNoWorker"].replace(")", '{tenant="acme"})')
    assert f"`{of_a_tenant}`" in (REPO / "docs" / "deployment.md").read_text()


def test_a_program_that_is_ready_and_whose_figures_of_the_database_are_missing_is_told() -> None:
    """No other rule over those figures can be true then."""
    (expr,) = (rule["expr"] for rule in RULES if rule["alert"] == "SentinelFiguresMissing")
    assert {part.strip() for part in expr.split(" or ")} == {
        f"{program}_database_up == 0 and on (instance) {program}_ready == 1"
        for program in ("sentinel", "worker", "orders")
    }, "of each instance: another one's figures say nothing of these"


def test_every_figure_that_asks_for_an_alert_has_one() -> None:
    asked = " ".join(rule["expr"] for rule in RULES)
    told = [
        name for package in ("sentinel", "worker") for path in (REPO / package).rglob("*.py")
        for name, about in re.findall(r'\(\s*"((?:sentinel|worker|orders)_[a-z_]+)",\s*"([^"]+)"', path.read_text())
        if re.search("alert (on|where) ", about, re.IGNORECASE)
    ]  # fmt: skip
    assert len(told) > 3
    assert [name for name in told if name not in asked] == []


def test_alerts_ask_for_figures_that_the_programs_give() -> None:
    given = {
        name for package in ("sentinel", "worker") for path in (REPO / package).rglob("*.py")
        for name in re.findall(r"\"((?:sentinel|worker|orders)_[a-z_]+)\"", path.read_text())
    }  # fmt: skip
    given |= {f"worker_{name}" for name in _OPEN} | {f"orders_{name}" for name in _OPEN_ORDERS}
    assert len(RULES) > 5
    for rule in RULES:
        asked = re.findall(r"\b(?:sentinel|worker|orders)_[a-z_]+", rule["expr"])
        assert asked and {name.removesuffix("_total") for name in asked} <= given, rule["alert"]


def test_alerts_name_only_commands_that_are_there() -> None:
    told = [name for rule in RULES for name in re.findall("`([^`]+)`", rule["annotations"]["description"])]
    commands = [name for name in told if not name.startswith("/") and name != "_database_up"]
    assert len(commands) > 4
    for command in commands:
        find_command(shlex.split(command))
