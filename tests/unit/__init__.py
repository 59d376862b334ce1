"""Tests without Kafka, Redis or a browser, in the folders of `service/`; at the top those of the project itself."""
