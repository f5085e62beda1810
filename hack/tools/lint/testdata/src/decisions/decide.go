package decisions

import (
	"context" // want `a decision must not use context`
	"time"
)

func decide(ctx context.Context, now time.Time) time.Duration {
	return time.Since(now) + time.Now().Sub(now) // want `must not use time.Since` `must not use time.Now`
}

func fine(now, then time.Time) bool { return now.After(then) && now.Sub(then) > time.Minute }
