"""The command `perceptron`.

Start with `app`, which has all commands and turns errors into exit codes. `run` has the commands on a process, `data`
those on events, `dead_letters` those on rejected records, `stored` those on stored models. `options` has the options
that several commands take.
"""
