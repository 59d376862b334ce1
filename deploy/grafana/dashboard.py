"""The Grafana dashboard, as a table of panels: `python deploy/grafana/dashboard.py` writes it for Grafana to load.

It writes `dashboards/perceptron.json` next to this file, and the descriptions of the panels to docs/dashboards.md. Both
are committed, so this script and its package (in the extra `dev`) are needed only to change a panel. A test fails if
they differ, and other tests run every query.
"""

import json
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

TARGET = Path(__file__).parent / "dashboards" / "perceptron.json"
PAGE = Path(__file__).parents[2] / "docs" / "dashboards.md"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
MODEL = 'job=~"$job", model=~"$model"'
JOINED = f'{MODEL}, outcome="joined"'
PROCESS = 'job=~"$job", instance=~"$instance"'
PREDICT = f'{PROCESS}, route="/v1/models/{{name}}/predict"'
COLUMNS, FIGURE_HEIGHT, GRAPH_HEIGHT = 24, 4, 8  # the grid: 24 columns of the window's width, lines of 30 pixels

Steps = tuple[tuple[float | None, str], ...]
PLAIN: Steps = ((None, "blue"),)


class Panel(NamedTuple):
    """A figure or a graph: queries by their legends; `steps` are pairs of a value and the colour from that value on."""

    title: str
    description: str
    unit: str
    queries: dict[str, str]
    steps: Steps = PLAIN
    log: bool = False


class Row(NamedTuple):
    """The panels of a row, and their purpose."""

    text: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "model", window: str = "$__rate_interval", selector: str = MODEL) -> str:
    """Increase a second, summed over processes, for what each process does."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[{window}]))"


def pace(metric: str, by: str = "model") -> str:
    """Increase a second of a durable counter, which only the learner exports, and another process after a takeover.

    It is that of the largest value over processes: a process that Kafka has replaced, but that does not know it yet,
    counts the same records as its successor, so a sum would count them twice.
    """
    return f"rate(max by ({by}) ({metric}{{{MODEL}}})[$__rate_interval:5s])"


def newest(metric: str, by: str = "model", selector: str = MODEL) -> str:
    """The largest value over processes, of the learner or of the process that is furthest; never the sum."""
    return f"max by ({by}) ({metric}{{{selector}}})"


def accuracy(weights: str, suffix: str = "") -> str:
    """The accuracy of these weights: `last`, `average` or `served`."""
    return newest(f"perceptron_prequential_accuracy{suffix}", selector=f'{MODEL}, weights="{weights}"')


def quantiles(histogram: str, by: str = "model", selector: str = MODEL) -> dict[str, str]:
    """The median and the slow end of a histogram."""
    per_bucket = rate(f"{histogram}_bucket", by=f"{by}, le".removeprefix(", "), selector=selector)
    legend = f"{{{{{by}}}}} " if by else ""
    return {f"{legend}p{q:g}": f"histogram_quantile({q / 100:g}, {per_bucket})" for q in (50, 95, 99)}


def mistake_rate(window: str) -> str:
    """Mistakes for each event; no value, rather than 0 / 0, if there was no event.

    Rates are computed for each series before the sum, so that a takeover does not count events twice.
    """
    events = rate("perceptron_events_total", window=window)
    return f"{rate('perceptron_mistakes_total', window=window)} / ({events} > 0)"


LAG = f"sum by (model) (max by (model, topic, partition) (perceptron_lag_records{{{MODEL}}}))"
LEARNER = f"and on (job, instance, model) perceptron_learning{{{MODEL}}} == 1"
PREDICTIONS = rate("perceptron_predictions_total")
SNAPSHOT_AGE = f"time() - {newest('perceptron_snapshot_timestamp_seconds')}"
WORSE = "The worst hundredth of requests took longer than p99, half of them longer than p50."

ROWS: dict[str, Row] = {
    "At a glance": Row("Whether all is well now: the figures that somebody who was just woken looks at first.", (
        Panel("Processes up", "Processes that Prometheus reaches.", "short",
              {"up": 'sum(up{job=~"$job"})'}, ((None, "red"), (1, "green"))),
        Panel("Learners", "Processes that learn the model. One is right; none means that its records wait; "
              "two only for a moment, while a takeover is noticed.", "short",
              {"{{model}}": f"sum by (model) (perceptron_learning{{{MODEL}}})"},
              ((None, "red"), (1, "green"), (2, "orange"))),
        Panel("Mistake rate, 5 min", "Mistakes for each event learned in the last five minutes.", "percentunit",
              {"{{model}}": mistake_rate("5m")}),
        Panel("Accuracy", "Share of right predictions of the last weights, each made before its event was learned, "
              "over the recent window. Red: no better than a coin.", "percentunit",
              {"{{model}}": accuracy("last")}, ((None, "red"), (0.5, "green"))),
        Panel("Records behind", "Records in Kafka that are not learned yet.", "short",
              {"{{model}}": LAG}, ((None, "green"), (10_000, "orange"), (1_000_000, "red"))),
        Panel("Predictions", "Predictions answered each second, by all processes.", "ops",
              {"{{model}}": PREDICTIONS}),
        Panel("Prediction p99", "99 of 100 requests for predictions are answered within this time.", "s",
              {"p99": quantiles("perceptron_http_request_duration_seconds", by="", selector=PREDICT)["p99"]},
              ((None, "green"), (0.05, "orange"), (0.25, "red"))),
        Panel("Snapshot age", "Time since the last save. It also grows while no events arrive, since then there is "
              "nothing to save.", "s", {"{{model}}": SNAPSHOT_AGE}),
    )),
    "Learning": Row("How well the model predicts, and what the theorem says of it.", (
        Panel("Mistakes", "Mistakes since the model began: fast at first, then slowly. A mistake is an event with "
              "y·s ≤ 0, a wrong prediction one whose label differs; a score of 0 can make the first without the "
              "second.", "short", {"{{model}} mistakes": newest("perceptron_mistakes_total"),
                                   "{{model}} wrong predictions": newest("perceptron_wrong_predictions_total")}),
        Panel("Mistake rate, now and over six hours", "Mistakes for each event, over five minutes and over six hours. "
              "The first line rising above the second means that the stream has changed.", "percentunit",
              {"{{model}} 5 min": mistake_rate("5m"), "{{model}} 6 h": mistake_rate("6h")}),
        Panel("Prequential accuracy", "Share of right predictions, each made before its event was learned, over the "
              "recent window: of the last weights, of their average where one is kept, and of who always answers with "
              "the more frequent label. A model below that baseline is of no use. Where the label of the event before "
              "is as good as the model, labels come in runs, and accuracy says little.", "percentunit",
              {"{{model}}": accuracy("last"),
               "{{model}} average": accuracy("average"),
               "{{model}} answers given": accuracy("answered"),
               "{{model}} baseline": newest("perceptron_baseline_accuracy"),
               "{{model}} previous label": newest("perceptron_previous_label_accuracy")}),
        Panel("Accuracy over all events", "Share of right predictions of the last weights since the model began, "
              "between the ends of an interval that holds at all times: what the share estimates is never outside, but "
              "for one model in twenty.", "percentunit",
              {"{{model}}": accuracy("last", "_overall"),
               "{{model}} at least": accuracy("last", "_low"),
               "{{model}} at most": accuracy("last", "_high")}),
        Panel("Candidates", "Share of right predictions over the recent window: of the weights that answer, and of "
              "each candidate, which learns side by side with the model. Whether a difference is shown: "
              "`perceptron inspect`.", "percentunit",
              {"{{model}} as served": accuracy("served"),
               "{{model}} {{candidate}}": newest("perceptron_candidate_accuracy", by="model, candidate")}),
        Panel("The positive label", "Over the recent window, of the weights that answer: precision is the share of "
              "positive predictions that were right, recall the share of positive events that were found, F1 their "
              "harmonic mean, balanced accuracy the mean of what was found of each label. Where positives are rare, "
              "accuracy says little of them; a larger positive margin finds more. With three labels and more there is "
              "balanced accuracy alone.", "percentunit",
              {"{{model}} precision": newest("perceptron_precision"), "{{model}} recall": newest("perceptron_recall"),
               "{{model}} F1": newest("perceptron_f1"),
               "{{model}} balanced accuracy": newest("perceptron_balanced_accuracy")}),
        Panel("Ranking of scores", "Over the recent window, of the weights that answer and of candidates: AUC is the "
              "chance that a positive event has a higher score than a negative one, average precision the mean "
              "precision at the score of each positive event. Unlike accuracy they say much where a label is rare. "
              "With two labels, once each has 50 events.", "percentunit",
              {"{{model}} AUC": newest("perceptron_auc"),
               "{{model}} average precision": newest("perceptron_average_precision"),
               "{{model}} {{candidate}} AUC": newest("perceptron_candidate_auc", by="model, candidate"),
               "{{model}} {{candidate}} average precision":
               newest("perceptron_candidate_average_precision", by="model, candidate")}),
        Panel("Log loss", "Over the recent window, of the weights that answer and of candidates with rule "
              "logistic-delta: the mean of -log(probability of the label).", "short",
              {"{{model}}": newest("perceptron_log_loss"),
               "{{model}} {{candidate}}": newest("perceptron_candidate_log_loss", by="model, candidate")}),
        Panel("Recall by label", "Over the recent window, of the weights that answer: the share of each label's events "
              "that was found. Of models with at most 50 labels.", "percentunit",
              {"{{model}} {{label}}": newest("perceptron_label_recall", by="model, label")}),
        Panel("Squared norm under its limit", "Squared length of the weight vector, and what it cannot exceed: the "
              "start's plus what all updates can add. Logarithmic.", "short",
              {"{{model}} squared norm": f"max by (model) (perceptron_squared_norm{{{MODEL}}} {LEARNER})",
               "{{model}} limit": newest("perceptron_squared_norm_limit")}, log=True),
        Panel("Updates under their bound", "Updates since the model began, and the most that the perceptron theorem "
              "allows for the events so far: data and reference alone decide it. Logarithmic.", "short",
              {"{{model}} updates": newest("perceptron_updates_total"),
               "{{model}} bound": newest("perceptron_mistake_bound")}, log=True),
        Panel("Perceptron loss", "Mean of max(0, -y·s) over the recent window: how far wrong scores were off.", "short",
              {"{{model}}": newest("perceptron_loss")}),
        Panel("Margins", "Quantiles of y·s/‖x‖ over the recent window: how far from the boundary, below 0 on its "
              "wrong side.", "short",
              {"{{model}} {{quantile}}": newest("perceptron_margin", by="model, quantile")}),
        Panel("Updates", "Events each second that changed the weights.", "eps",
              {"{{model}}": pace("perceptron_updates_total")}),
        Panel("Columns", "Columns of the weight vector, the bias included, and those of them that have scaled numbers. "
              "Past the cap, new features are ignored.", "short",
              {"{{model}}": newest("perceptron_columns"), "{{model}} scaled": newest("perceptron_scaled_columns")}),
    )),
    "Stream": Row("What comes from Kafka, how fast it is learned, and what of it is no event.", (
        Panel("Events learned", "Events learned and saved each second.", "eps",
              {"{{model}}": pace("perceptron_events_total")}),
        Panel("Records behind, by partition", "Records in Kafka that are not learned yet.", "short",
              {"{{model}} {{topic}}-{{partition}}": newest("perceptron_lag_records", by="model, topic, partition")}),
        Panel("Time to catch up", "How long the records that wait would take at the present speed; those that arrive "
              "meanwhile come on top. A gap while records wait: nothing is being learned.", "s",
              {"{{model}}": f"{LAG} / ({pace('perceptron_events_total')} > 0)"}),
        Panel("Event delay", "From a record's timestamp to its learning: half of the records waited longer than p50, "
              "one in a hundred longer than p99.", "s", quantiles("perceptron_event_delay_seconds")),
        Panel("Rejected and skipped records", "Records each second that were no event, by reason: they are in the "
              "dead-letter topic. And those that `where` passed over.", "recps",
              {"{{model}} {{reason}}": pace("perceptron_rejected_events_total", "model, reason"),
               "{{model}} skipped": pace("perceptron_skipped_events_total")}),
        Panel("Ignored features", "Features each second that were new when the cap on columns was reached.", "cps",
              {"{{model}}": pace("perceptron_ignored_features_total")}),
    )),
    "Late labels": Row("Events that wait for labels, of models with a join, and what comes of them.", (
        Panel("Held events", "Events that wait for their labels.", "short",
              {"{{model}}": newest("perceptron_held_events")}),
        Panel("Labels by outcome", "Label records each second, by what became of them. Late: the window of the event "
              "was over. Unknown: no event has their id.", "recps",
              {"{{model}} {{outcome}}": pace("perceptron_labels_total", "model, outcome")}),
        Panel("Coverage", "Share of label records that were learned with an event, of all so far.", "percentunit",
              {"{{model}}": f'{newest("perceptron_labels_total", selector=JOINED)} '
                            f'/ (sum by (model) ({newest("perceptron_labels_total", "model, outcome")}) > 0)'}),
        Panel("Label delay", "From an event to its label: half of the labels came sooner than p50, one in a hundred "
              "later than p99.", "s", quantiles("perceptron_label_delay_seconds")),
        Panel("Events that are not learned", "Each second: their window ended without a label (expired), their id was "
              "there already (repeated), or there was no room (dropped).", "eps",
              {"{{model}} expired": pace("perceptron_expired_events_total"),
               "{{model}} repeated": pace("perceptron_repeated_events_total"),
               "{{model}} dropped": pace("perceptron_dropped_events_total")}),
        Panel("Learning waits", "1 while windows do not close, as labels or the records of a partition are missing.",
              "short", {"{{model}}": newest("perceptron_join_waits")}),
    )),
    "Serving": Row("Who asks, how soon they are answered, and with what.", (
        Panel("Predictions", "Predictions answered each second, by all processes.", "ops",
              {"{{model}}": PREDICTIONS}),
        Panel("Latency of predictions", f"Requests for predictions of all models. {WORSE}", "s",
              quantiles("perceptron_http_request_duration_seconds", by="", selector=PREDICT)),
        Panel("Answers by label", "Share of each label among the predictions. A drift with steady labels in the "
              "stream means that those who ask have changed, or the model.", "percentunit",
              {"{{model}} {{label}}": f"{rate('perceptron_predictions_total', by='model, label')} "
                                      f"/ on (model) group_left () ({PREDICTIONS} > 0)"}),
        Panel("Requests by status", "HTTP requests each second, on all routes, by status code.", "reqps",
              {"{{code}}": rate("perceptron_http_request_duration_seconds_count", by="code", selector=PROCESS)}),
    )),
    "Durability": Row("How safely what was learned is kept, and whether every process follows.", (
        Panel("Snapshot age", "Time since the learner's last save. It also grows while no events arrive, since then "
              "there is nothing to save.", "s", {"{{model}}": SNAPSHOT_AGE}),
        Panel("Age of the snapshot that answers", "By process. One that stays above the others does not follow the "
              "learner's saves.", "s",
              {"{{model}} {{instance}}":
               "time() - min by (model, instance) "
               f"(perceptron_served_snapshot_timestamp_seconds{{{MODEL}, instance=~\"$instance\"}})"}),
        Panel("Not saved yet", "Records that were read and that no accepted snapshot covers: after a crash they are "
              "learned again. Between two saves there are some; that they only grow means that saves fail.", "short",
              {"{{model}}": newest("perceptron_unsaved_records")}),
        Panel("Saves by result", "Saves each second. Refused: another process had saved before, as after a takeover. "
              "Failed: the store could not be reached.", "ops",
              {"{{model}} {{result}}": rate("perceptron_snapshots_total", "model, result")}),
        Panel("Snapshot bytes", "Bytes written to the store each second.", "binBps",
              {"{{model}}": rate("perceptron_snapshot_bytes_total")}),
        Panel("Save duration", "Of accepted saves: half took longer than p50, one in a hundred longer than p99.", "s",
              quantiles("perceptron_snapshot_duration_seconds")),
        Panel("Rewinds", "Times each second that state was dropped and restored from the store, by cause. Nothing is "
              "lost by one; many mean that processes contend for the model.", "ops",
              {"{{model}} {{cause}}": rate("perceptron_rewinds_total", "model, cause")}),
    )),
    "Process": Row("What each process takes of its machine, and what it misses.", (
        Panel("Event loop lag", "How late the event loop woke up: what each request waits at least. Above the dashed "
              "line predictions are slow.", "s",
              {"{{instance}}": f"perceptron_event_loop_lag_seconds{{{PROCESS}}}"},
              ((None, "transparent"), (0.1, "red"))),
        Panel("Slice duration", "How long learning keeps the event loop before a request gets its turn.", "s",
              quantiles("perceptron_slice_duration_seconds")),
        Panel("CPU", "Processor time used each second; 1 is a whole core, and learning uses at most one.", "short",
              {"{{instance}}": rate("process_cpu_seconds_total", by="instance", selector=PROCESS)}),
        Panel("Memory", "Resident memory.", "bytes",
              {"{{instance}}": f"process_resident_memory_bytes{{{PROCESS}}}"}),
        Panel("Up and ready", "1 where Prometheus reaches the process, and where all its models can answer.", "short",
              {"{{instance}} up": f"up{{{PROCESS}}}", "{{instance}} ready": f"perceptron_ready{{{PROCESS}}}"}),
        Panel("Missing", "For how long Kafka or Redis does not answer.", "s", {
            "{{dependency}}": "max by (dependency) ((time() - perceptron_missing_since_timestamp_seconds"
                              f"{{{PROCESS}}}) * (perceptron_missing_since_timestamp_seconds{{{PROCESS}}} > bool 0))"}),
        Panel("Uptime", "Since the process began.", "s",
              {"{{instance}}": f"time() - process_start_time_seconds{{{PROCESS}}}"}),
        Panel("Open files", "Connections among them.", "short",
              {"{{instance}}": f"process_open_fds{{{PROCESS}}}"}),
        Panel("Releases", "Processes on each release.", "short",
              {"{{version}}": f"count by (version) (perceptron_build_info{{{PROCESS}}})"}),
    )),
}  # fmt: skip


def _built(panel: Panel, number: int, figure: bool, abreast: int) -> stat.Panel | timeseries.Panel:
    built: stat.Panel | timeseries.Panel
    if figure:
        reduced = common.ReduceDataOptions().calcs(["lastNotNull"])
        built = stat.Panel().reduce_options(reduced).graph_mode(options.BigValueGraphMode.NONE)
        built.no_value("–")
    else:
        legend = common.VizLegendOptions().display_mode(options.LegendDisplayMode.LIST).show_legend(True)
        tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING)
        legend.placement(options.LegendPlacement.BOTTOM).calcs([])
        built = timeseries.Panel().legend(legend).tooltip(tooltip)
        built.line_width(1).fill_opacity(10).show_points(options.VisibilityMode.NEVER)
        if panel.steps is not PLAIN:
            dashed = common.GraphThresholdsStyleConfig().mode(options.GraphThresholdsStyleMode.DASHED)
            built.thresholds_style(dashed)
        if panel.log:
            built.scale_distribution(common.ScaleDistributionConfig().type(options.ScaleDistribution.LOG).log(10))
        else:
            built.axis_soft_min(0)
    built.span(COLUMNS // abreast).height(FIGURE_HEIGHT if figure else GRAPH_HEIGHT)
    built.id(number).title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    steps = [Threshold(value=value, color=color) for value, color in panel.steps]
    built.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    for letter, (legend_text, expression) in zip("ABCDEF", panel.queries.items(), strict=False):
        query = prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(legend_text).datasource(SOURCE)
        # A figure shows the present: over a range it would still show values that have ended.
        built.with_target(query.instant() if figure else query.range())
    return built


def _variable(name: str, label: str, description: str, query: str) -> dashboard.QueryVariable:
    built = dashboard.QueryVariable(name).label(label).description(description).query(query).datasource(SOURCE)
    built.multi(True).include_all(True).current(VariableOption(text=["All"], value=["$__all"]))
    return built.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)


def render() -> str:
    """The dashboard as the JSON that Grafana loads."""
    built = dashboard.Dashboard("Perceptron Service").uid("perceptron").tags(["perceptron"])
    built.description("What is learned, how far behind, how it is served, and how safely it is kept.")
    built.time("now-1h", "now").refresh("10s").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    built.with_variable(source.current(VariableOption(text="Prometheus", value="prometheus")))
    for variable in (
        _variable("job", "Job", "The deployment.", "label_values(perceptron_build_info, job)"),
        _variable("model", "Model", "For panels by model.", 'label_values(perceptron_version{job=~"$job"}, model)'),
        _variable("instance", "Process", "For panels by process.", 'label_values(up{job=~"$job"}, instance)'),
    ):
        built.with_variable(variable)
    number = 0
    for title, (_, panels) in ROWS.items():
        number += 1
        built.with_row(dashboard.Row(title).id(number))
        figures = title == "At a glance"
        abreast = len(panels) if figures else 2 if len(panels) % 3 else 3
        for panel in panels:
            number += 1
            # A panel that would be alone in its line gets the whole line.
            alone = panel is panels[-1] and len(panels) % abreast == 1
            built.with_panel(_built(panel, number, figures, 1 if alone else abreast))
    return json.dumps(built.build(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


HEAD = """\
# The dashboard

`deploy/grafana/dashboards/perceptron.json` is one Grafana dashboard for all models and processes. Its file is made by
`deploy/grafana/dashboard.py`, and so is this page.

**To import it**: in Grafana choose *Dashboards → New → Import*, upload the file, and choose a Prometheus that scrapes
`/metrics` of every process. Or have Grafana load the folder: `deploy/grafana/provisioning` does so for
`docker compose --profile monitoring up --build`, where it is on http://localhost:3000.

Above the panels stand *Data source*, *Job* (the deployment), *Model* and *Process*. Figures that only the learner has
are the largest over processes, and what is added up is what each process does by itself: so a takeover by another one
shows in none of them twice. What is wrong enough to tell somebody is in [alerts.md](alerts.md).
"""


def page() -> str:
    """The text of docs/dashboards.md: the description of each row and panel."""
    parts = [HEAD]
    for title, (text, panels) in ROWS.items():
        parts.append(f"## {title}\n\n{text}\n\n| panel | what it shows |\n|---|---|\n")
        parts[-1] += "".join(f"| {panel.title} | {panel.description} |\n" for panel in panels)
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render())
    PAGE.write_text(page())
