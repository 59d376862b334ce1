"""`perceptron suggest`: settings for a topic's or a file's events.

`suggest` is the command. `sample` takes records, `field_profile` counts what they hold, `label_inference` and
`proposal` choose label, features and the settings of a join, and `model_selection` compares settings on the sample.
"""
