"""What an operator sees and does about transactions in doubt, and at a broker; the same for `xabridge recover`, for the
pages of a node, and for the console. It imports none of them.

- `place`: where an operator looks and acts: what a configuration names, or a manager that runs.
- `scan`: what resource managers and the log say at one moment. `survey`: these facts as transactions, each with its
  branches and its decision, and how a person names one. `survey_json`: a survey as JSON.
- `branch_completion`: commit, rollback and forget by hand: plan, explain, carry out. `decision_end`: the end of a
  decision that names a resource which is gone. `recovery_pass`: one recovery pass and its report.
- `service`: all of that for several people at once, each choice shown before it is made.
- `diagnosis`: the checks of `xabridge doctor`. `broker_changes`: changes at a broker, in words.
"""
