"""The stages of a run. What a stage does not read here may be missing while it runs.

=========  =============================================================================
simulate   reads ``<cell>/cell.json``, the data sets, the model
           writes ``<cell>/captures``, ``<cell>/truth``, ``<cell>/simulation.json``
attack     reads ``<cell>/captures``, ``<cell>/simulation.json``
           writes ``<cell>/guesses``
score      reads ``<cell>/captures``, ``<cell>/simulation.json``, ``<cell>/truth``,
           ``<cell>/guesses``
           writes ``*.parquet``, ``gallery``
report     reads ``<cell>/cell.json``, ``<cell>/simulation.json``, ``*.parquet``, ``gallery``,
           ``limits.json``
           writes ``summary.json``, ``findings.json``, ``report``
=========  =============================================================================

Every stage reads the plan in ``experiment.toml`` and adds to ``provenance.json``; ``jobs.sqlite``
tells which jobs are done. ``limits.json`` is there only if ``fedsim limits`` was run. The hashes of
captures and truth are in ``simulation.json``; attacks see nothing else of it. An attack or a metric
may load public models of its own, such as a language prior.

Private examples lie in ``<cell>/truth``, ``<cell>/captures/candidates.safetensors``,
``<cell>/guesses`` and ``gallery``, and in the page of the report; ``truth`` and ``gallery`` have
mode 0700. Remove all five before a run folder is passed on.
"""
