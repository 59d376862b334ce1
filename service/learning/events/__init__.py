"""Record and request bytes to events. Three readers of JSON read the same format.

Start with `event_reader` (a slice of records as `read_events`), then `value_formats`, `careful_reader` (every rule of
docs/events.md) and `flatten` (values to named numbers, and what a type makes of a value). `compiled/` reads the usual
records of a slice, or the instances of a large request, in one compiled pass and declines the rest: the careful reader
alone defines what an event is. A single prediction is read by msgspec in `serving/predictions`.

`read_events` has the results and the reasons of rejections, `text_hints` the hints in them, `json_values` the parser of
the careful reader.
"""
