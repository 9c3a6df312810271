-- The tables of a hospital's records.sqlite, version 1.

create table owner (hospital text not null, secret text);
create table log_read (log text primary key, line integer not null);

create table studies (
  digest text primary key,
  name text not null,
  content text not null,
  coordinator text not null,
  asked text not null
);
create table decisions (
  digest text not null,
  state text not null,
  decided_by text not null,
  decided text not null
);
create index decisions_of_studies on decisions (digest);

create table answers (
  coordinator text not null,
  dataset text not null,
  run text not null,
  variant text not null,
  arm text not null,
  round integer not null,
  step text not null,
  study text not null,
  is_fold integer not null,
  question text,
  answered text not null,
  primary key (coordinator, dataset, run, variant, arm, round, step)
);
create index recovered on answers (variant) where question is null;
create table used (
  coordinator text not null,
  dataset text not null,
  study text not null,
  run text not null,
  rounds integer not null,
  evaluations integer not null,
  primary key (coordinator, dataset, study, run)
);
create trigger count_answer after insert on answers begin
  insert into used values (
    new.coordinator, new.dataset, new.study, new.run,
    (new.round > 0 or new.is_fold) and 1 = (
      select count(*) from answers where coordinator = new.coordinator and dataset = new.dataset
      and run = new.run and variant = new.variant and arm = new.arm and round = new.round
    ),
    new.round = 0 and not new.is_fold
  ) on conflict do update set
    rounds = rounds + excluded.rounds, evaluations = evaluations + excluded.evaluations;
end;
create table totals (
  coordinator text not null,
  dataset text not null,
  studies integer not null,
  runs integer not null,
  rounds integer not null,
  evaluations integer not null,
  primary key (coordinator, dataset)
);
create trigger count_run after insert on used begin
  insert into totals values (new.coordinator, new.dataset, 1, 1, new.rounds, new.evaluations)
  on conflict do update set
    studies = studies + (1 = (
      select count(*) from used where coordinator = new.coordinator and dataset = new.dataset
      and study = new.study
    )),
    runs = runs + 1,
    rounds = rounds + excluded.rounds,
    evaluations = evaluations + excluded.evaluations;
end;
create trigger count_more after update on used begin
  update totals set
    rounds = rounds + new.rounds - old.rounds,
    evaluations = evaluations + new.evaluations - old.evaluations
  where coordinator = new.coordinator and dataset = new.dataset;
end;
create table contracts (
  coordinator text not null,
  dataset text not null,
  column_name text not null,
  contract text not null,
  held text not null,
  primary key (coordinator, dataset, column_name, contract)
);
create table chosen (
  coordinator text not null,
  dataset text not null,
  study text not null,
  run text not null,
  user text not null,
  variant text not null,
  primary key (coordinator, dataset, study, run, user)
);
create table kept (
  coordinator text not null,
  dataset text not null,
  variant text not null,
  run text not null,
  arm text not null,
  since_round integer not null,
  since_exchange integer not null,
  round integer not null,
  exchange integer not null,
  primary key (coordinator, dataset, variant, run, arm)
);

create table disclosures (
  number integer primary key,
  kind text not null,
  label text not null,
  sketch blob not null,
  figures text not null
);
create table cohorts (
  number integer primary key,
  hashes blob not null,
  whole_rows blob not null,
  patients blob not null
);

create table releases (
  dataset text not null,
  study text not null,
  run text not null,
  arm text not null,
  round integer not null,
  strength real not null,
  reply text not null,
  released text not null,
  primary key (dataset, study, run, arm, round)
);
create table update_uses (what blob primary key, use blob);
create table sealed_answers (
  study text not null,
  run text not null,
  round integer not null,
  step text not null,
  given integer not null default 0,
  in_log integer not null default 0,
  primary key (study, run, round, step)
);
