package decisions

import "time"

func observe() time.Time { return time.Now() }
