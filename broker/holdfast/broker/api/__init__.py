"""The wire API of a broker: `server` finds who answers, `validation` checks requests, a file per service translates."""
