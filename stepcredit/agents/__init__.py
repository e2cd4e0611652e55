"""The policy's side: chat rendering, engines, trajectories and rollouts. Knows no losses."""
