//! The policy: a table of rules, each with the reading that trips it, the one that releases it, and the pace that it asks for. The
//! slowest pace of all tripped rules wins, and says why. A reading that the device doesn't give trips nothing.

use super::Readings;
use crate::error::{Error, Result};
use crate::train::{Advice, Pace};

/// How far above the least battery it must be charged before a run goes on.
const BATTERY_BACK: u8 = 5;
/// How far below the highest temperature a run slows down, and how far below each it must cool.
const WARM: f32 = 4.0;
const COOLED: f32 = 5.0;
/// Shares of time spent waiting for memory that slow a run down, and that let it go on.
const PRESSURE: (f32, f32) = (10.0, 2.0);
/// What of the available memory is left to others, one part in so many.
const LEFT_TO_OTHERS: usize = 10;
/// Memory is advised in steps of this, so that plans don't follow every page.
const STEP: usize = 16 << 20;

/// What a run's user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Policy {
    /// Pause while the device runs on its battery.
    pub only_on_power: bool,
    /// Pause while less than this many percent are in the battery.
    pub min_battery: Option<u8>,
    /// Pause at this temperature, in degrees Celsius; slow down shortly below.
    pub max_temp: Option<f32>,
    /// Pause outside of these hours.
    pub between: Option<Window>,
    /// Slow down while somebody uses the device.
    pub yield_to_user: bool,
    /// The run's budget in bytes, where it has one: less is advised while less can be had.
    pub budget: Option<usize>,
}

/// Hours of a day, perhaps over midnight: from the first minute on, until before the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    from: u16,
    until: u16,
}

impl Window {
    /// Reads `22:00-06:30`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn parse(text: &str) -> Result<Self> {
        let fault =
            || Error::Option { option: "between", value: text.into(), fault: "two times such as 22:00-06:30".into() };
        let minute = |time: &str| {
            let (hours, minutes) = time.split_once(':')?;
            let digits = |part: &str, limit: u16| {
                let plain = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
                part.parse::<u16>().ok().filter(|&number| plain && number < limit)
            };
            Some(digits(hours, 24)? * 60 + digits(minutes, 60)?)
        };
        let (from, until) = text.split_once('-').ok_or_else(fault)?;
        match (minute(from.trim()), minute(until.trim())) {
            (Some(from), Some(until)) if from != until => Ok(Self { from, until }),
            _ => Err(fault()),
        }
    }

    fn contains(self, minute: u16) -> bool {
        if self.from < self.until {
            (self.from..self.until).contains(&minute)
        } else {
            minute >= self.from || minute < self.until
        }
    }
}

/// The rules, in the order in which their reasons are preferred.
#[derive(Clone, Copy, Debug)]
enum Rule {
    OnPower,
    Battery,
    Hot,
    Warm,
    Hours,
    User,
    Pressure,
}

const RULES: [Rule; 7] = [Rule::OnPower, Rule::Battery, Rule::Hot, Rule::Warm, Rule::Hours, Rule::User, Rule::Pressure];

/// What one look does to a rule.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    Trips,
    Releases,
    /// Between the two thresholds: it stays as it was.
    Holds,
}

/// A policy and what it has seen.
#[derive(Clone, Debug)]
pub struct Conditions {
    policy: Policy,
    tripped: [bool; RULES.len()],
    memory: Option<usize>,
}

impl Conditions {
    /// A policy that has seen nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, tripped: [false; RULES.len()], memory: None }
    }

    /// What to do now, and why where it is not to run.
    pub fn advise(&mut self, now: &Readings) -> (Advice, Option<String>) {
        let mut slowest: Option<Rule> = None;
        for (rule, tripped) in RULES.into_iter().zip(&mut self.tripped) {
            match rule.look(&self.policy, now) {
                Look::Trips => *tripped = true,
                Look::Releases => *tripped = false,
                Look::Holds => {}
            }
            let slower = slowest.is_none_or(|other| rule.pace() == Pace::Pause && other.pace() == Pace::Slow);
            if *tripped && slower {
                slowest = Some(rule);
            }
        }
        self.memory = self.memory_now(now);
        let pace = slowest.map_or(Pace::Run, Rule::pace);
        (Advice { pace, memory: self.memory }, slowest.map(|rule| rule.reason(&self.policy, now)))
    }

    /// Less than the budget while less can be had: down at once, up only by a quarter or to the whole.
    fn memory_now(&self, now: &Readings) -> Option<usize> {
        let (budget, available) = (self.policy.budget?, now.available?);
        let room = now.own + available - available / LEFT_TO_OTHERS;
        let whole = if self.memory.is_none() { budget } else { budget.saturating_add(budget / 10) };
        let steps = room / STEP * STEP;
        match self.memory {
            _ if room >= whole => None,
            Some(advised) if steps >= advised && steps < advised + advised / 4 => Some(advised),
            _ => Some(steps.min(budget)),
        }
    }
}

/// Trips at or above `high`, releases at or below `low`.
fn above(value: Option<f32>, high: f32, low: f32) -> Look {
    match value {
        Some(value) if value >= high => Look::Trips,
        Some(value) if value > low => Look::Holds,
        _ => Look::Releases,
    }
}

impl Rule {
    fn pace(self) -> Pace {
        match self {
            Rule::OnPower | Rule::Battery | Rule::Hot | Rule::Hours => Pace::Pause,
            Rule::Warm | Rule::User | Rule::Pressure => Pace::Slow,
        }
    }

    fn look(self, policy: &Policy, now: &Readings) -> Look {
        let when = |trips: bool| if trips { Look::Trips } else { Look::Releases };
        match self {
            Rule::OnPower => when(policy.only_on_power && now.on_power == Some(false)),
            Rule::Battery => match (policy.min_battery, now.battery) {
                (Some(least), Some(left)) if left < least => Look::Trips,
                // A battery that is full is charged enough, whatever was asked for.
                (Some(least), Some(left)) if left < least.saturating_add(BATTERY_BACK).min(100) => Look::Holds,
                _ => Look::Releases,
            },
            Rule::Hot => policy.max_temp.map_or(Look::Releases, |most| above(now.celsius, most, most - COOLED)),
            Rule::Warm => {
                let warm = policy.max_temp.map(|most| most - WARM);
                warm.map_or(Look::Releases, |warm| above(now.celsius, warm, warm - COOLED))
            }
            Rule::Hours => when(policy.between.zip(now.minute).is_some_and(|(hours, minute)| !hours.contains(minute))),
            Rule::User => when(policy.yield_to_user && now.user_active == Some(true)),
            Rule::Pressure => above(now.pressure, PRESSURE.0, PRESSURE.1),
        }
    }

    fn reason(self, policy: &Policy, now: &Readings) -> String {
        let (battery, celsius) = (now.battery.unwrap_or_default(), now.celsius.unwrap_or_default());
        match self {
            Rule::OnPower => "it runs on its battery".into(),
            Rule::Battery => {
                let least = policy.min_battery.unwrap_or_default();
                format!("{battery} % in the battery, {least} % are asked for")
            }
            Rule::Hot | Rule::Warm => {
                format!("{celsius:.0} degrees, {:.0} are allowed", policy.max_temp.unwrap_or_default())
            }
            Rule::Hours => "outside of the hours asked for".into(),
            Rule::User => "somebody uses the device".into(),
            Rule::Pressure => format!("others wait for memory, {:.0} % of the time", now.pressure.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Pace::{Pause, Run, Slow};

    const MIB: usize = 1 << 20;

    /// Paces over time, for one reading after another.
    fn paces<T: Copy>(policy: Policy, reading: fn(T) -> Readings, over_time: &[(T, Pace)]) {
        let mut conditions = Conditions::new(policy);
        for (at, &(value, expected)) in over_time.iter().enumerate() {
            let (advice, reason) = conditions.advise(&reading(value));
            assert_eq!(advice.pace, expected, "reading {at}");
            assert_eq!(reason.is_some(), expected != Run, "reading {at}: {reason:?}");
        }
    }

    #[test]
    fn power_and_the_hour_pause_at_once_and_release_at_once() {
        let policy = Policy { only_on_power: true, ..Policy::default() };
        let power = |on_power| Readings { on_power, ..Readings::default() };
        paces(policy, power, &[(None, Run), (Some(true), Run), (Some(false), Pause), (Some(true), Run)]);
        let policy = Policy { between: Some(Window::parse("22:00-06:30").unwrap()), ..Policy::default() };
        let hour = |minute| Readings { minute: Some(minute), ..Readings::default() };
        paces(policy, hour, &[(0, Run), (389, Run), (390, Pause), (1319, Pause), (1320, Run), (1439, Run)]);
        let policy = Policy { between: Some(Window::parse("9:00-17:00").unwrap()), ..Policy::default() };
        paces(policy, hour, &[(0, Pause), (539, Pause), (540, Run), (1019, Run), (1020, Pause)]);
    }

    #[test]
    fn a_battery_must_be_charged_a_little_more_before_a_run_goes_on() {
        let policy = Policy { min_battery: Some(30), ..Policy::default() };
        let battery = |left| Readings { battery: Some(left), ..Readings::default() };
        paces(policy, battery, &[(30, Run), (29, Pause), (30, Pause), (34, Pause), (35, Run), (31, Run), (29, Pause)]);
        let all = Policy { min_battery: Some(100), ..Policy::default() };
        paces(all, battery, &[(99, Pause), (100, Run)]);
    }

    #[test]
    fn heat_slows_then_pauses_and_cooling_takes_it_back_in_turn() {
        let policy = Policy { max_temp: Some(80.0), ..Policy::default() };
        let heat = |celsius| Readings { celsius: Some(celsius), ..Readings::default() };
        let over_time = [
            (70.0, Run),
            (76.0, Slow),
            (79.0, Slow),
            (80.0, Pause),
            (76.0, Pause),
            (75.0, Slow),
            (72.0, Slow),
            (71.0, Run),
        ];
        paces(policy, heat, &over_time);
    }

    #[test]
    fn users_and_pressure_slow_down() {
        let policy = Policy { yield_to_user: true, ..Policy::default() };
        let user = |active| Readings { user_active: Some(active), ..Readings::default() };
        paces(policy, user, &[(false, Run), (true, Slow), (false, Run)]);
        let waiting = |pressure| Readings { pressure: Some(pressure), ..Readings::default() };
        paces(Policy::default(), waiting, &[(0.0, Run), (10.0, Slow), (5.0, Slow), (2.0, Run), (9.0, Run)]);
    }

    #[test]
    fn the_slowest_pace_wins_and_says_why() {
        let policy = Policy { only_on_power: true, max_temp: Some(80.0), ..Policy::default() };
        let mut conditions = Conditions::new(policy);
        let both = Readings { on_power: Some(false), celsius: Some(77.0), ..Readings::default() };
        assert_eq!(
            conditions.advise(&both),
            (Advice { pace: Pause, memory: None }, Some("it runs on its battery".into()))
        );
        let warm = Readings { on_power: Some(true), ..both };
        assert_eq!(conditions.advise(&warm).1.as_deref(), Some("77 degrees, 80 are allowed"));
    }

    #[test]
    fn a_device_that_says_nothing_runs() {
        let policy = Policy { only_on_power: true, min_battery: Some(50), max_temp: Some(60.0), ..Policy::default() };
        assert_eq!(Conditions::new(policy).advise(&Readings::default()), (Advice::GO, None));
    }

    #[test]
    fn memory_goes_down_at_once_and_comes_back_late() {
        let policy = Policy { budget: Some(1000 * MIB), ..Policy::default() };
        let mut conditions = Conditions::new(policy);
        // Available megabytes beside 100 that are held, and what is advised.
        let over_time = [
            (2000, None),
            (1000, None),
            (990, Some(976)),
            (1000, Some(976)),
            (500, Some(544)),
            (480, Some(528)),
            (560, Some(528)),
            (700, Some(720)),
            (1050, Some(1000)),
            (1110, Some(1000)),
            (1120, None),
            (1000, None),
        ];
        for (available, advised) in over_time {
            let now = Readings { available: Some(available * MIB), own: 100 * MIB, ..Readings::default() };
            assert_eq!(conditions.advise(&now).0.memory, advised.map(|mib: usize| mib * MIB), "{available} available");
        }
    }

    #[test]
    fn hours_that_are_none_are_refused() {
        for text in
            ["", "22:00", "22:00-", "24:00-06:00", "22:60-06:00", "22-6", "22:00-22:00", "+1:00-02:00", "022:00-06:00"]
        {
            let line = Window::parse(text).unwrap_err().to_string();
            assert_eq!(line, format!("--between {text}: two times such as 22:00-06:30"));
        }
    }
}
