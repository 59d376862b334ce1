"""The command `perceptron`.

Start with `app`, which has all commands and turns errors into exit codes. `run` has the commands on a process, `data`
those on events, `stored` those on stored models; `options` are the ones that several commands take.
"""
