"""With which settings the rows of a job were made. These are those of this run, and those of the
runs before, which `job.json` holds by their marks.

The end of a row's key is the mark of the settings that it was made with (see `pipegen.jobs.row_keys`).
So what was finished is counted without reading it.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pipegen.core.errors import CallFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.pipe import Pipe
from pipegen.core.slots import is_ok
from pipegen.core.steps import EngineMap
from pipegen.engines.protocol import answers_depend_on, rewrites_of
from pipegen.jobs.code import changed_code, codes_of
from pipegen.jobs.journal import Finished, SettingsDamaged, read_settings, write_settings
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.row_keys import RULE, SHARED_MARK, Settings, in_keys, mark_of
from pipegen.records import strict_json
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import flat_values, options_from, resolve

_log = logging.getLogger("pipegen")
_RUNS = 64
"""So many runs with different settings are remembered."""
_UNSET = "not set"
_MODEL, _ADAPTER = "the model", "the adapter"


class Made(NamedTuple):
    """How many requests were finished when a run began, and with which settings they were made."""

    alike: int
    """Those that were made with the settings of this run: they are reused. Where no run had others,
    these are all, those with options of their own too.
    """
    others: tuple[tuple[int, str], ...]
    """The others: how many, and with what, in words."""


def settings_of(
    route: Pipe[Any, Any], options: GenerationOptions | None, version: str
) -> dict[str, Any]:
    """What all rows of a run have in common, as plain data for `job.json`. Raises `GenerationError`
    where an engine's model cannot be read.
    """
    try:
        engines = [engine for engine in _engines_of(route) if hasattr(engine, "identity")]
        depends = [dict(answers_depend_on(engine)) for engine in engines]
        rewrites = sorted({name for engine in engines for name in rewrites_of(engine)})
    except CallFailed as failure:
        raise failure.error from failure
    later = {
        engine: f"engine {number}: "
        for number, engine in enumerate(map(id, engines), 1)
        if number > 1
    }
    plugins = [
        later.get(id(engine), "") + f"{plugin.name} {plugin.version}".strip()
        for engine in engines
        for plugin in engine.plugins
    ]
    set_options = (
        {}
        if options is None
        else {name: value for name, value in flat_values(options).items() if value is not None}
    )
    adapters: dict[str, str] = {}
    for engine in depends:
        for name, digest in engine.pop("adapters", {}).items():
            adapters[name] = " ".join(filter(None, (adapters.get(name), digest)))
    codes = attempt(lambda: codes_of(route, engines)).value_or({})  # it looks at foreign objects
    return {
        "engines": _distinct(depends),
        "pipeline": route.stages,
        "turns": route.leads_on,
        "rewrites": rewrites,
        "plugins": plugins,
        "version": version,
        "options": strict_json.plain(set_options),
        **({"adapters": adapters} if adapters else {}),
        **({"code": codes} if codes else {}),
    }


def _distinct(engines: Sequence[Settings]) -> list[Settings]:
    return [engine for place, engine in enumerate(engines) if engine not in engines[:place]]


def _engines_of(route: Pipe[Any, Any]) -> list[Any]:
    """The engines that a pipe owns, and those that only a stage of it is bound to, such as a
    `pg.call` in the place of the route's own.
    """
    engines: dict[int, object] = {id(engine): engine for engine in route.owns}
    route.rebound(EngineMap(engine=lambda engine: engines.setdefault(id(engine), engine)))
    return [*engines.values()]


def note_run(
    folder: Path,
    settings: dict[str, Any],
    *,
    rows: int = 0,
) -> tuple[dict[str, object], Settings | None]:
    """Write the settings of a run to `job.json`, beside those of the runs before; give them, and
    what `job.json` held, None where there was none.

    What only a server could say, and has not, is as the last run had it. A damaged `job.json`
    beside finished rows is written anew, with a warning: a row's key holds with what it was made.
    Raises `JournalError`.

    rows: how many rows of the folder are finished.
    """
    engines = _distinct([in_keys(engine) for engine in settings["engines"]])
    settings = {**settings, "keys": RULE, "engines": engines}
    last_settings = _read(folder, settings, rows)
    if last_settings is None:
        write_settings(folder, {**settings, "runs": {mark_of(settings): settings}})
        return settings, None
    runs, earlier = dict(last_settings.get("runs", {})), "earlier" in last_settings
    settings = {
        **settings,
        "engines": _settled(
            settings["engines"], [run["engines"] for run in reversed(runs.values())]
        ),
    }
    mark = mark_of(settings)
    others = changed_code(runs.get(mark, {}).get("code"), settings.get("code", {}))
    if others and rows:
        _log.warning(
            "%s: the code of %s is another than that of the finished requests, which are reused;"
            " version=... of the job, or of a plugin, sends them again",
            folder,
            " and of ".join(others),
        )
    # to Python 1 is equal to true
    if mark not in runs or strict_json.dump(
        {name: last_settings.get(name) for name in settings}
    ) != strict_json.dump(settings):
        runs.pop(mark, None)
        runs = dict([*runs.items()][1 - _RUNS :])
        write_settings(
            folder,
            {
                **settings,
                "runs": {**runs, mark: settings},
                **({"earlier": True} if earlier else {}),
            },
        )
    return settings, last_settings


def _read(folder: Path, settings: Settings, rows: int) -> Settings | None:
    try:
        last_settings = read_settings(folder)
    except SettingsDamaged as damaged:
        if not rows:
            raise JournalError(f"{damaged}; give another folder") from damaged
        _log.warning(
            "%s: it is written anew, and finished requests with the settings of this run are reused",
            damaged,
        )
        return {**settings, "earlier": True}
    if rows and last_settings is None:
        raise JournalError(
            f"{folder} holds results and no job.json: it is no job's folder; give another"
        )
    return last_settings


def _settled(
    current_engines: Sequence[Settings],
    earlier_runs: Sequence[Sequence[Settings]],
) -> list[Settings]:
    """The engines, with what is None in them as it was in the last run whose engines were the same
    but for that.
    """
    unknown = [
        {name for name, value in engine.items() if value is None} for engine in current_engines
    ]

    def without_unknown(engines: Sequence[Settings]) -> list[dict[str, object]]:
        return [
            {name: value for name, value in engine.items() if name not in names}
            for engine, names in zip(engines, unknown, strict=True)
        ]

    matching_runs = (
        engines
        for engines in earlier_runs
        if len(engines) == len(current_engines)
        and without_unknown(engines) == without_unknown(current_engines)
    )
    return list(next(matching_runs, current_engines)) if any(unknown) else list(current_engines)


def changes(before: Settings, now: Settings) -> list[str]:
    """What makes the keys of a run others than those of an earlier one, in words. Values are
    resolved: to write a default out is no change.

    >>> run = {
    ...     "engines": [{"model": "a"}],
    ...     "pipeline": "hf",
    ...     "plugins": [],
    ...     "version": "",
    ...     "options": {},
    ... }
    >>> changes(
    ...     run,
    ...     {
    ...         **run,
    ...         "engines": [{"model": "b", "dtype": "float16"}],
    ...         "options": {"temperature": 0.7, "top_p": 1.0},
    ...     },
    ... )
    ['the model is another', "dtype was not set, is 'float16'", 'temperature was 0.0, is 0.7']
    """
    words: list[str] = []
    was_rewritten, is_rewritten = (", ".join(run.get("rewrites", ())) for run in (before, now))
    if was_rewritten != is_rewritten:
        words.append(
            f"what is rewritten in messages was {was_rewritten or 'nothing'}, is"
            f" {is_rewritten or 'nothing'}: requests without such messages are reused"
        )
    return words + [
        f"{name} is another"
        if name.endswith(_MODEL) or name.startswith(_ADAPTER)
        else f"{name} was {was}, is {new}"
        for name, was, new in _differences(before, now)
    ]


def _differences(
    earlier: Settings, current: Settings, *, options: bool = True
) -> Iterator[tuple[str, str, str]]:
    """The names and the two values of what differs."""
    both: list[tuple[str, Settings, Settings]] = []
    for number, (was, new) in enumerate(zip_longest(earlier["engines"], current["engines"]), 1):
        both.append(("" if number == 1 else f"engine {number}: ", was or {}, new or {}))
    shared = [
        {name: run.get(name, _UNSET) for name in ("pipeline", "plugins", "version")}
        for run in (earlier, current)
    ]
    both.append(("", shared[0], shared[1]))
    digests = [run.get("adapters", {}) for run in (earlier, current)]
    names = sorted(digests[0].keys() & digests[1].keys())
    before, now = ({f"{_ADAPTER} {name!r}": of[name] for name in names} for of in digests)
    both.append(("", before, now))
    if options:
        both.append(("", _resolved(earlier.get("options", {})), _resolved(current["options"])))
    for words, first, second in both:
        yield from _unlike(words, first, second)


def _unlike(words: str, before: Settings, after: Settings) -> Iterator[tuple[str, str, str]]:
    """What differs of two mappings, whose names these words precede; in mappings within them, by
    the names there.
    """
    for name in {**before, **after}:
        was, new = before.get(name, _UNSET), after.get(name, _UNSET)
        inner = [{} if value is _UNSET else value for value in (was, new)]
        if all(isinstance(value, Mapping) for value in inner) and any(inner):
            yield from _unlike(f"{words}{name}.", *inner)
        elif json.dumps(was, sort_keys=True) != json.dumps(new, sort_keys=True):
            # to Python 1 is equal to true
            yield words + (_MODEL if name == "model" else name), _shown(was), _shown(new)


def _shown(value: object) -> str:
    return _UNSET if value is _UNSET else f"{value!r:.60}"


def _resolved(values: Settings) -> dict[str, object]:
    """Every option with the value that it has where a request says nothing."""
    parsed = attempt(lambda: options_from(values))
    options = parsed.value_or(GenerationOptions())
    plain: dict[str, Any] = strict_json.plain(flat_values(resolve(options)))
    # a later version of pipegen wrote them, or they are damaged
    unread_values = {} if is_ok(parsed) else values
    return {**plain, "use_generation_config": bool(options.use_generation_config), **unread_values}


def made_before(finished: Finished, before: Settings | None, now: Settings) -> Made:
    """With which settings the finished rows of a job were made. `before` is what `job.json` held
    before this run.
    """
    if before is None or not len(finished):
        return Made(0, ())
    mark, runs = mark_of(now), before.get("runs", {})
    if [*runs] == [mark] and "earlier" not in before:  # there was no other run
        return Made(len(finished), ())
    shared = {run_mark[:SHARED_MARK]: run for run_mark, run in [*runs.items(), (mark, now)]}
    names = {name.encode(): name for name in (*runs, mark, *shared)}
    counts: Counter[str] = Counter()
    for full, count in finished.marks.items():
        counts[names.get(full) or names.get(full[:SHARED_MARK], "")] += count
    alike, own_count, unknown = (counts.pop(name, 0) for name in (mark, mark[:SHARED_MARK], ""))
    other_settings = [
        (
            count,
            (
                _words(runs[name], now)
                if name in runs
                else f"{_words(shared[name], now, options=False)}, and options of their own"
            ),
        )
        for name, count in counts.most_common()
    ]
    other_settings += [
        (own_count, "options of their own, reused where they are asked for again")
    ] * bool(own_count)
    other_settings += [
        (
            unknown,
            "settings that job.json does not name",
        )
    ] * bool(unknown)
    return Made(alike, tuple(other_settings))


def _words(earlier: Settings, current: Settings, *, options: bool = True) -> str:
    differences = _differences(earlier, current, options=options)
    return ", ".join(
        "another model"
        if name.endswith(_MODEL)
        else f"another {name.removeprefix('the ')}"
        if name.startswith(_ADAPTER)
        else f"{name} {was} (now {new})"
        for name, was, new in differences
    )
