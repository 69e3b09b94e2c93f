"""Franka arms behind the HTTP server of SERL and HIL-SERL. See docs/robots/franka.md."""
