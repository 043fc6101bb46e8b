"""What an operator sees and finishes by hand at a node, whoever asks for it: the console for its own configuration, or
somebody with the tokens of a manager that runs. It is `xabridge recover`, with the same survey, plans and words.

`operations` shows what each choice would do and carries it out, at a `Place`. `running` is the place that a running
manager is, and `pages` its HTTP. `survey_json` is a survey on its way to the console.
"""
