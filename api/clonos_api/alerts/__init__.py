"""Posts the beginning and the end of alerts to webhooks.

- `clonos_api.fleet.alerts`: what an alert is.
- `clonos_api.alerts.watching`: compares the newest board with the alerts that have been reported.
- `clonos_api.alerts.webhook_request`: the request, in the formats of Alertmanager and Standard Webhooks, and the
  addresses of its receiver; none may be link-local.
- `clonos_api.alerts.sending`: the background task of the leader.
"""
